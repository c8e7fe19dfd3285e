"""The processor cores that this process may use: those it is bound to, and what its container's quota allows."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def cores(system: Path = Path("/")) -> int:
    """Return how many cores this process may use, at least 1; a part of one counts as one.

    :param system: root of the file system in which the kernel tells of quotas.
    """
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return math.ceil(min([bound, *_quotas(system)]))


def _quotas(system: Path) -> Iterator[float]:
    """Return the quotas of this process's control group and of those around it, in cores."""
    for line in _read(system / "proc/self/cgroup").splitlines():
        controllers, _, group = line.partition(":")[2].partition(":")
        # Version 2 has one tree for everything, version 1 one for each controller.
        if controllers and "cpu" not in controllers.split(","):
            continue
        tree = system / "sys/fs/cgroup" / ("cpu" if controllers else "")
        # In a container the root may be its own group, whatever path the host knows that by.
        own = tree / group.strip("/")
        for folder in (own, *own.parents):
            if folder.is_relative_to(tree):
                yield _quota(folder)


def _quota(group: Path) -> float:
    pair = _read(group / "cpu.max") or " ".join(
        _read(group / f"cpu.cfs_{name}_us") for name in ("quota", "period")
    )
    try:
        quota, period = map(int, pair.split())
    except ValueError:  # no file, or "max"
        return math.inf
    # Version 1 says -1 for none.
    return quota / period if quota > 0 and period > 0 else math.inf


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, ValueError):
        return ""
