"""Requests are pulled one at a time, from iterators of either kind."""

from __future__ import annotations

import asyncio

import pytest

from airflow_llm_provider.engine.feed import Feed


async def drain(feed):
    items = []
    while (item := await feed.next()) is not None:
        items.append(item)
    return items


class TestFeed:
    def test_a_sync_source_is_read_to_its_end(self):
        feed = Feed(iter("abc"))
        assert asyncio.run(drain(feed)) == ["a", "b", "c"]
        assert feed.exhausted

    def test_many_workers_share_an_async_source_without_losing_or_doubling(self):
        async def source():
            for number in range(100):
                await asyncio.sleep(0)
                yield number

        async def main():
            feed = Feed(source())
            parts = await asyncio.gather(*(drain(feed) for _ in range(7)))
            assert feed.exhausted
            return sorted(item for part in parts for item in part)

        assert asyncio.run(main()) == list(range(100))

    @pytest.mark.parametrize("kind", ["sync", "async"])
    def test_after_a_failure_there_is_nothing_more_and_no_end_either(self, kind):
        def broken():
            yield 1
            raise OSError("disk")

        async def abroken():
            yield 1
            raise OSError("disk")

        async def main():
            feed = Feed(broken() if kind == "sync" else abroken())
            assert await feed.next() == 1
            with pytest.raises(OSError, match="disk"):
                await feed.next()
            assert await feed.next() is None
            assert not feed.exhausted

        asyncio.run(main())

    @pytest.mark.parametrize("kind", ["sync", "async"])
    def test_a_source_left_unread_is_closed(self, kind):
        closed = []

        def source():
            try:
                yield 1
                yield 2
            finally:
                closed.append(True)

        async def asource():
            try:
                yield 1
                yield 2
            finally:
                closed.append(True)

        async def main():
            feed = Feed(source() if kind == "sync" else asource())
            await feed.next()
            await feed.aclose()

        asyncio.run(main())
        assert closed == [True]
