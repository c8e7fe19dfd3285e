"""What a benchmark found: one line of JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import child

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a benchmark found.

    :param name: the claim.
    :param value: the number that the claim is about.
    :param unit: what the number counts.
    :param target: what was promised, in words.
    :param ok: whether the promise is kept, all parts of it.
    :param baseline: what it was measured against, in the same run.
    :param details: everything else worth knowing.
    """

    name: str
    value: float | None
    unit: str
    target: str
    ok: bool
    baseline: Mapping[str, Any]
    details: Mapping[str, Any] = field(default_factory=dict)

    def print(self) -> None:
        """Print the line."""
        line = {
            "name": self.name,
            "value": None if self.value is None else rounded(self.value),
            "unit": self.unit,
            "target": self.target,
            "ok": self.ok,
            "baseline": self.baseline,
            **self.details,
            "machine": machine(),
        }
        print(json.dumps(line, ensure_ascii=False), flush=True)


def machine() -> dict[str, Any]:
    """Describe the machine, and how busy it was."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": _cpu_model(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "load": round(os.getloadavg()[0], 2),
    }


def rounded(value: float) -> float:
    """Keep four digits: no measurement here is worth more."""
    return float(f"{value:.4g}")


def options(name: str, doc: str | None, arguments: Sequence[str] | None, *, runs: int) -> argparse.Namespace:
    """Parse what every benchmark understands."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}", description=(doc or "").partition("\n")[0]
    )
    parser.add_argument(
        "--quick", action="store_true", help="the smallest size, once, in one process: shows that it works"
    )
    parser.add_argument("--runs", type=int, default=runs, help=f"runs to take the median of (default {runs})")
    chosen = parser.parse_args(arguments)
    if chosen.quick:
        child.use_threads()
    return chosen


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.processor(),
    )
