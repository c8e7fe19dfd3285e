"""Command line of a deployment's first steps: `python -m airflow_llm_provider.deploy secrets|pools|connection|tickets`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_llm_provider.errors import LLMInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code.

    :param arguments: command line without the program's name.
    """
    options = _parser().parse_args(arguments)
    try:
        _say(_run(options))
    except LLMInputError as error:
        _say(str(error))
        return 1
    return 0


def _run(options: argparse.Namespace) -> str:
    # Each command loads only what it needs: these containers start one after the other.
    if options.command == "secrets":
        from airflow_llm_provider.deploy.secrets import make_secrets  # noqa: PLC0415

        make_secrets(options.folder, options.shared, os.environ)
        return (
            f"The secrets are in {options.folder}, the UI's login in {options.folder / 'ui_passwords.json'}"
        )
    if options.command == "connection":
        from airflow_llm_provider.deploy.connection import set_connection  # noqa: PLC0415

        return set_connection(os.environ)
    if options.command == "pools":
        from airflow_llm_provider.deploy.connection import create_pools  # noqa: PLC0415

        return create_pools()
    from airflow_llm_provider.starter.tickets import write_sample_tickets  # noqa: PLC0415

    write_sample_tickets(options.folder)
    return f"The sample tickets are in {options.folder}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m airflow_llm_provider.deploy", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    secrets = commands.add_parser("secrets", help="write the secrets that are not there")
    secrets.add_argument("folder", type=Path, help="folder for Airflow's services")
    secrets.add_argument("shared", type=Path, help="folder for PostgreSQL and Redis")
    commands.add_parser("pools", help="create the pools that are not there")
    commands.add_parser("connection", help="create the connection llm_default as the environment says")
    tickets = commands.add_parser("tickets", help="write sample tickets for nightly_tickets")
    tickets.add_argument("folder", type=Path, help="folder of the partitions")
    return parser


def _say(message: str) -> None:
    sys.stdout.write(f"{message}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
