"""Which process this is, in words by which others can tell whether it still lives."""

from __future__ import annotations

import hashlib
import os
import socket
import uuid
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self

#: Fields of ``/proc/PID/stat`` after the name in brackets: the state is the first, the start time this one.
_START_FIELD = 19
#: States of processes that are over, but whose parent has not looked yet.
_OVER = frozenset({"Z", "X", "x"})


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessId:
    """A process of some machine.

    :param host: name of the machine or container, for people.
    :param system: names the running system that counts the process ids: this boot of this machine, and the container.
    :param started: when the process began, by that system's count; empty: unknown.
    """

    host: str
    system: str
    pid: int
    started: str

    @classmethod
    def own(cls) -> Self:
        """Return the id of this process."""
        pid = os.getpid()
        return cls(host=socket.gethostname(), system=_system(), pid=pid, started=_start_of(pid) or "")

    def __str__(self) -> str:
        return f"process {self.pid} on host {self.host}"

    def is_dead(self) -> bool:
        """Tell whether the process is certainly gone. Nothing is certain about one of another system."""
        if self.system != _system():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            # Somebody else's process, which is there.
            pass
        started = _start_of(self.pid)
        if started is None or not self.started:
            return False
        # Another start: the number was given to another process since.
        return started in _OVER or started != self.started


def _start_of(pid: int) -> str | None:
    """Return when a process began, or the state of one that is over; ``None``: nobody says."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    if len(fields) <= _START_FIELD:
        return None
    return fields[0] if fields[0] in _OVER else fields[_START_FIELD]


@cache
def _system() -> str:
    """Name the running system: containers of one machine count their processes apart."""
    parts = [socket.gethostname()]
    try:
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    except OSError:
        parts.append(str(uuid.getnode()))
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()
