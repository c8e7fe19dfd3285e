"""Which book a URL names."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_llm_provider.engine.budget.memory_book import MemoryBook
from airflow_llm_provider.limiters.books.file import SUFFIX, FileBook
from airflow_llm_provider.limiters.books.redis import RedisBook
from airflow_llm_provider.limiters.place import shared_place

if TYPE_CHECKING:
    from airflow_llm_provider.engine.budget.book import AccountBook

__all__ = ["book_from_url"]


def book_from_url(url: str | None, run: str) -> AccountBook:
    """Return the book of one run, where ``limiter_url`` says.

    :param url: ``memory://``, ``file://``, ``redis://``; ``None``: ``file://``.
    :param run: names the run, such as its plan's id.
    :raises LLMInputError: when the URL is not understood.
    """
    place = shared_place(url)
    name = hashlib.blake2b(run.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    if place is None:
        return MemoryBook()
    return FileBook(place / f"{name}{SUFFIX}") if isinstance(place, Path) else RedisBook(place, name)
