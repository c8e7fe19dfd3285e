"""Loads Arrow so that it takes memory from the system's allocator, unless ``ARROW_DEFAULT_MEMORY_POOL`` names another.

Arrow's own keeps what it has once had, which costs a task some 50 to 100 MB at the same speed. All of Arrow chooses
once, when it is loaded; where that has happened already, only what Python asks of it can still follow.

To be imported before anything that imports pyarrow.
"""

from __future__ import annotations

import os
import sys

_CHOICE = "ARROW_DEFAULT_MEMORY_POOL"


def _load() -> None:
    late = "pyarrow" in sys.modules
    os.environ[_CHOICE] = "system"
    try:
        import pyarrow as pa  # noqa: PLC0415 -- after the choice

        pool = pa.system_memory_pool() if late else pa.default_memory_pool()
        pa.set_memory_pool(pool)
    finally:
        # Our choice, not that of programs that are started from here.
        del os.environ[_CHOICE]


def give_back() -> None:
    """Give memory that is free, Python's as well as Arrow's, back to the system, where the allocator can."""
    import pyarrow as pa  # noqa: PLC0415 -- as above

    pa.default_memory_pool().release_unused()


if not os.environ.get(_CHOICE):
    _load()
