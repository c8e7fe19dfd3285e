"""All benchmarks, one after the other: one line of JSON each."""

from __future__ import annotations

import subprocess
import sys

NAMES = (
    "engine",
    "limits",
    "limits_unknown",
    "budget",
    "outage",
    "kill",
    "split",
    "memory",
    "merge",
    "overhead",
)


def main() -> None:
    """Run each in a process of its own, with the arguments given."""
    failed = [
        name
        for name in NAMES
        if subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *sys.argv[1:]], check=False).returncode
    ]
    if failed:
        sys.exit(f"ended with an error: {', '.join(failed)}")


if __name__ == "__main__":
    main()
