"""Which book a URL names."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from airflow_llm_provider.engine.budget.memory_book import MemoryBook
from airflow_llm_provider.errors import LLMInputError
from airflow_llm_provider.limiters.books.file import SUFFIX, FileBook
from airflow_llm_provider.limiters.books.redis import RedisBook
from airflow_llm_provider.limiters.file import default_directory

if TYPE_CHECKING:
    from airflow_llm_provider.engine.budget.book import AccountBook

__all__ = ["book_from_url"]


def book_from_url(url: str | None, run: str) -> AccountBook:
    """Return the book of one run, where ``limiter_url`` says.

    :param url: ``memory://``, ``file://``, ``redis://``; ``None``: ``file://``.
    :param run: names the run, such as its plan's id.
    :raises LLMInputError: when the URL is not understood.
    """
    parts = urlsplit(url or "file://")
    name = hashlib.blake2b(run.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    if parts.scheme == "memory":
        return MemoryBook()
    if parts.scheme == "file":
        directory = Path(unquote(parts.path)) if parts.path not in {"", "/"} else default_directory()
        return FileBook(directory / f"{name}{SUFFIX}")
    if parts.scheme in {"redis", "rediss", "unix", "valkey", "valkeys"}:
        return RedisBook(str(url), name)
    raise LLMInputError(f"limiter_url has the scheme {parts.scheme!r}: use memory://, file:// or redis://")
