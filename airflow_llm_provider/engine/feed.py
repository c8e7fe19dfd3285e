"""Requests, pulled one at a time when somebody is free to send them: memory stays flat whatever the row count."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Generator, Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_llm_provider.engine.call import Request


class Feed:
    """One source of requests for many workers.

    An exception of the source reaches the worker that pulled; after it, and after the end, there is nothing more.
    """

    def __init__(self, requests: Iterable[Request] | AsyncIterable[Request]) -> None:
        self._sync: Iterator[Request] | None = None
        self._async: AsyncIterator[Request] | None = None
        if isinstance(requests, Iterable):
            self._sync = iter(requests)
        else:
            self._async = aiter(requests)
        # An async iterator must not be asked for its next item while it still works on the last one.
        self._turn = asyncio.Lock()
        self._closed = False
        #: Whether the source came to its end by itself.
        self.exhausted = False

    async def next(self) -> Request | None:
        """Return the next request; ``None``: there are no more."""
        if self._sync is not None:
            return self._next_sync(self._sync)
        async with self._turn:
            return await self._next_async()

    async def aclose(self) -> None:
        """Let a source that was not read to its end close what it holds open."""
        if isinstance(self._sync, Generator):
            self._sync.close()
        if isinstance(self._async, AsyncGenerator):
            await self._async.aclose()

    def _next_sync(self, source: Iterator[Request]) -> Request | None:
        if self._closed:
            return None
        try:
            return next(source)
        except StopIteration:
            self._closed = self.exhausted = True
            return None
        except BaseException:
            self._closed = True
            raise

    async def _next_async(self) -> Request | None:
        if self._closed or self._async is None:
            return None
        try:
            return await anext(self._async)
        except StopAsyncIteration:
            self._closed = self.exhausted = True
            return None
        except BaseException:
            self._closed = True
            raise
