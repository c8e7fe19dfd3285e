"""Find and end every process of one supervised set, however it was forked.

A supervisor starts its own session. Airflow's tasks move to process groups of their own, but stay in that session, and
on Linux what loses its parent is adopted by the supervisor. So "ours" is: in the session, or below the supervisor.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Identity", "adopt_orphans", "end_processes", "members"]

_PR_SET_CHILD_SUBREAPER = 36
_SERVICE_GRACE = 2.0


@dataclass(frozen=True, kw_only=True)
class Identity:
    """One process for good: its number alone may be given to another later.

    :param pid: process number.
    :param created: epoch seconds of its start, as psutil reports them.
    """

    pid: int
    created: float

    @classmethod
    def of(cls, pid: int) -> Identity:
        """Return the identity of a running process."""
        return cls(pid=pid, created=psutil.Process(pid).create_time())

    def alive(self) -> bool:
        """Tell whether this very process still runs."""
        try:
            process = psutil.Process(self.pid)
            return bool(process.create_time() == self.created and process.status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False

    def replaced(self) -> bool:
        """Tell whether the number now belongs to another process."""
        try:
            return bool(psutil.Process(self.pid).create_time() != self.created)
        except psutil.NoSuchProcess:
            return False


def adopt_orphans() -> None:
    """Become the parent of every descendant that loses its own (Linux; elsewhere the session is all there is)."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def members(supervisor: Identity) -> list[psutil.Process]:
    """List the running processes of a set, without the supervisor itself.

    :param supervisor: the set's supervisor, which may be gone.
    """
    if supervisor.replaced():
        # A number in use as a session is not given away: if it was, the session is empty.
        return []
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
            if os.getsid(process.pid) == supervisor.pid:
                found[process.pid] = process
    with contextlib.suppress(psutil.NoSuchProcess):
        found |= {child.pid: child for child in psutil.Process(supervisor.pid).children(recursive=True)}
    found.pop(supervisor.pid, None)
    return [process for process in found.values() if _running(process)]


def end_processes(supervisor: Identity, *, grace: float, services: frozenset[int] = frozenset()) -> None:
    """End a whole set: ask, wait, then force.

    Tasks get SIGTERM too, so an operator's `on_kill` has `grace` seconds to save what it has.

    :param supervisor: the set's supervisor, which is spared.
    :param grace: seconds until what still runs is killed.
    :param services: processes that have nothing to save, and get a short while only once all others are gone.
    """
    started = time.monotonic()
    _signal(members(supervisor), signal.SIGTERM)
    while left := members(supervisor):
        working = any(process.pid not in services for process in left)
        if time.monotonic() - started > (grace if working else min(grace, _SERVICE_GRACE)):
            break
        psutil.wait_procs(left, timeout=0.1)
    # Again after the first kill: a process may have forked in between.
    while left:
        _signal(left, signal.SIGKILL)
        psutil.wait_procs(left, timeout=0.1)
        left = members(supervisor)


def _signal(processes: Iterable[psutil.Process], number: int) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def _running(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
