"""Command line of the local set-up: `python -m airflow_llm_provider.local demo|up|down|status`."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from airflow_llm_provider.errors import LLMInputError
from airflow_llm_provider.local.demo.display import say
from airflow_llm_provider.local.demo.home import Home, default_dags
from airflow_llm_provider.local.demo.run import run_demo
from airflow_llm_provider.local.demo.standing import bring_down, bring_up, tell_status
from airflow_llm_provider.local.errors import LocalError
from airflow_llm_provider.starter.endpoint import yours

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

__all__ = ["main"]

_FAILED = 1
_BAD_START = 2
_INTERRUPTED = 130
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code.

    :param arguments: command line without the program's name.
    """
    options = _parser().parse_args(arguments)
    # Also SIGINT: a shell that starts us in the background sets it to be ignored.
    for number in _STOP_SIGNALS:
        signal.signal(number, _interrupt)
    home = Home((options.home or Path(".local", "demo" if options.command == "demo" else "up")).absolute())
    try:
        return _run(options, home)
    except KeyboardInterrupt:
        return _end("interrupted; everything that was started is stopped", _INTERRUPTED, options)
    except (LLMInputError, LocalError) as error:
        return _end(str(error), _BAD_START, options)


def _run(options: argparse.Namespace, home: Home) -> int:
    if options.command == "down":
        bring_down(home)
        return 0
    if options.command == "status":
        return 0 if tell_status(home) else _FAILED
    dags = (options.dags or default_dags()).absolute()
    if not dags.is_dir():
        raise LocalError(f"there is no folder {dags}: name the folder of the example DAGs with --dags")
    if options.command == "up":
        bring_up(home, dags, yours(os.environ))
        return 0
    result = run_demo(home, dags, yours(os.environ), rows=options.rows)
    _last_line(result.to_json())
    return 0 if result.ok else _FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m airflow_llm_provider.local", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    helps = {
        "demo": "run the main job once, show the result, stop everything",
        "up": "start Airflow with the example DAGs and leave it running",
        "down": "stop what `up` started",
        "status": "say what is running",
    }
    for name, text in helps.items():
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("--home", type=Path, help="folder of everything that is written")
        if name in {"demo", "up"}:
            command.add_argument("--dags", type=Path, help="folder of the example DAGs")
        if name == "demo":
            command.add_argument("--rows", type=int, default=60, help="packages to ask about (60)")
    return parser


def _end(message: str, code: int, options: argparse.Namespace) -> int:
    say(message)
    if options.command == "demo":
        _last_line({"demo": "failed", "reason": message.splitlines()[0]})
    return code


def _last_line(value: dict[str, object]) -> None:
    # Not through rich, which would wrap a long line.
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    # Stopping takes a few seconds; an impatient second Ctrl-C must not cut it short.
    for number in _STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
