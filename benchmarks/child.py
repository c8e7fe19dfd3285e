"""A function in a process of its own: nothing that ran before is measured along, and its memory is its own.

``python -m benchmarks.child MODULE:FUNCTION JSON`` calls the function with keyword arguments and prints what it returns.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_llm_provider.testing.scripted_server import ScriptedServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from airflow_llm_provider.testing.scripted_server import EndpointOptions

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


class Child:
    """A function that runs in a process of its own.

    :param target: ``module:function``.
    :param arguments: plain JSON values.
    """

    def __init__(self, target: str, arguments: Mapping[str, Any]) -> None:
        command = [sys.executable, "-m", "benchmarks.child", target, json.dumps(arguments)]
        self._process = subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, env=_environment())
        self.pid = self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End it as ``kill -9`` does."""
        self._process.kill()
        self._process.communicate()

    def result(self) -> dict[str, Any]:
        """Wait for it and return what its function returned.

        :raises RuntimeError: when it failed; its traceback is on standard error.
        """
        output, _ = self._process.communicate()
        if self._process.returncode:
            raise RuntimeError(f"a measured process ended with exit code {self._process.returncode}")
        value: dict[str, Any] = json.loads(output)
        return value


class Thread:
    """The same in a thread of this process: no time to start, and numbers that mean nothing."""

    def __init__(self, target: str, arguments: Mapping[str, Any]) -> None:
        self.pid = os.getpid()
        self._pool = ThreadPoolExecutor(1)
        self._future = self._pool.submit(_function(target), **arguments)

    def result(self) -> dict[str, Any]:
        """Wait for it and return what its function returned."""
        value: dict[str, Any] = self._future.result()
        self._pool.shutdown()
        return value


_in_threads = False


def use_threads() -> None:
    """Start threads instead of processes from now on: to show that a benchmark works."""
    global _in_threads  # noqa: PLW0603 -- a process is either a measurement or a trial
    _in_threads = True


def serve(options: EndpointOptions) -> ScriptedServer:
    """Make the model server, in a process of its own; use it as a context manager."""
    return ScriptedServer(options=options, own_process=not _in_threads)


def start(target: str, **arguments: Any) -> Child | Thread:
    """Start a function.

    :param target: ``module:function``.
    :param arguments: plain JSON values.
    """
    return Thread(target, arguments) if _in_threads else Child(target, arguments)


def call(target: str, **arguments: Any) -> dict[str, Any]:
    """Call a function in a process of its own and return what it returned."""
    return start(target, **arguments).result()


def call_with_peak(target: str, **arguments: Any) -> tuple[dict[str, Any], float]:
    """Do the same; return also the most megabytes that the process and its children had together."""
    child = start(target, **arguments)
    peak = 0.0
    ended = threading.Event()

    def sample() -> None:
        nonlocal peak
        while not ended.wait(_SAMPLE_SECONDS):
            peak = max(peak, sum(map(_pss_mb, _family(child.pid))))

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    try:
        return child.result(), peak
    finally:
        ended.set()
        sampler.join()


def _environment() -> dict[str, str]:
    """Return the environment of a measured process: byte code is kept, as everywhere but in some containers."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _function(target: str) -> Callable[..., Any]:
    module, _, name = target.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


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
    value = _function(sys.argv[1])(**json.loads(sys.argv[2]))
    sys.stdout.write(json.dumps(value))


if __name__ == "__main__":
    main()
