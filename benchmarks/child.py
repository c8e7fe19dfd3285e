"""A function in a process of its own: nothing that ran before is measured along, and its memory is its own.

``python -m benchmarks.child MODULE:FUNCTION JSON`` calls the function with keyword arguments and prints what it returns.
"""

from __future__ import annotations

import importlib
import json
import resource
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT = Path(__file__).resolve().parent.parent
_SAMPLE_SECONDS = 0.02


@dataclass(kw_only=True)
class Effort:
    """What a stretch of work took.

    :param cpu_seconds: of this process and of children of its own that have ended.
    """

    seconds: float = 0.0
    cpu_seconds: float = 0.0


@contextmanager
def effort() -> Iterator[Effort]:
    """Measure what the block takes; the numbers are there when it is left."""
    taken = Effort()
    began, cpu = time.perf_counter(), _cpu_seconds()
    yield taken
    taken.seconds = time.perf_counter() - began
    taken.cpu_seconds = _cpu_seconds() - cpu


def peak_rss_mb() -> float:
    """Return the most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def start(target: str, **arguments: Any) -> subprocess.Popen[bytes]:
    """Start a function in a child process.

    :param target: ``module:function``.
    :param arguments: plain JSON values.
    """
    command = [sys.executable, "-m", "benchmarks.child", target, json.dumps(arguments)]
    return subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE)


def result(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Wait for a child and return what its function returned.

    :raises RuntimeError: when it failed; its traceback is on standard error.
    """
    output, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"a measured process ended with exit code {process.returncode}")
    value: dict[str, Any] = json.loads(output)
    return value


def call(target: str, **arguments: Any) -> dict[str, Any]:
    """Call a function in a child process and return what it returned."""
    return result(start(target, **arguments))


def call_with_peak(target: str, **arguments: Any) -> tuple[dict[str, Any], float]:
    """Call a function in a child process; return also the most megabytes that it and its children had together."""
    process = start(target, **arguments)
    peak = 0.0
    ended = threading.Event()

    def sample() -> None:
        nonlocal peak
        while not ended.wait(_SAMPLE_SECONDS):
            peak = max(peak, sum(map(_pss_mb, _family(process.pid))))

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    try:
        return result(process), peak
    finally:
        ended.set()
        sampler.join()


def _cpu_seconds() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def _family(pid: int) -> list[int]:
    """List a process and all its descendants."""
    family = [pid]
    for each in family:
        try:
            for task in Path(f"/proc/{each}/task").iterdir():
                family += [int(child) for child in (task / "children").read_text().split()]
        except OSError:  # it has ended
            continue
    return family


def _pss_mb(pid: int) -> float:
    """Return a process's memory, pages shared with others counted in part."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has ended
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:")), 0.0)


def main() -> None:
    """Call the function."""
    module, _, name = sys.argv[1].partition(":")
    value = getattr(importlib.import_module(module), name)(**json.loads(sys.argv[2]))
    sys.stdout.write(json.dumps(value))


if __name__ == "__main__":
    main()
