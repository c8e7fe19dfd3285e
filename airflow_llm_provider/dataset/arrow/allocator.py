"""Loads Arrow so that it takes memory from the system's allocator, unless ``ARROW_DEFAULT_MEMORY_POOL`` names another.

Arrow's own keeps what it has once had, which costs a task some 50 to 100 MB at the same speed. All of Arrow chooses
once, when it is loaded; where that has happened already, only what Python asks of it can still follow.

The GNU C library's allocator learns from each large block that is freed to take the next ones from a heap, which it can
give back only from its end. Told a threshold, even its own first one, it stops learning, and large blocks go back at once:
25 to 40 MB a task at the same speed. ``MALLOC_MMAP_THRESHOLD_`` sets another.

To be imported before anything that imports pyarrow.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys

_CHOICE = "ARROW_DEFAULT_MEMORY_POOL"
_THRESHOLD = "MALLOC_MMAP_THRESHOLD_"
#: ``M_MMAP_THRESHOLD`` of ``malloc.h``, and the bytes with which every process begins, see mallopt(3).
_M_MMAP_THRESHOLD, _BYTES = -3, 128 * 1024


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

    # What a shard leaves behind is young. To look through all that the process has would take a tenth of a second.
    gc.collect(1)
    pa.default_memory_pool().release_unused()


def _stop_learning() -> None:
    # Elsewhere than in the GNU C library there is no such function, and nothing to mend.
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _BYTES)


if not os.environ.get(_CHOICE):
    _load()
    if not os.environ.get(_THRESHOLD):
        _stop_learning()
