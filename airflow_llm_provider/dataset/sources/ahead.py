"""Reading ahead: the next batch is read while the one before is worked on."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

_Item = TypeVar("_Item")


def read_ahead(items: Iterator[_Item]) -> Iterator[_Item]:
    """Yield the same, each taken from ``items`` in another thread while the one before is in use.

    What ``items`` raises is raised in its place. When this is closed before its end, at most one item was taken in vain.
    """
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="llm-read") as reading:
        coming = reading.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = reading.submit(next, items, None)
            yield item
