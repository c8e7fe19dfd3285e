import asyncio

import pytest

from airflow_llm_provider.engine.budget.book import Balance
from airflow_llm_provider.engine.budget.memory_book import MemoryBook
from airflow_llm_provider.engine.budget.spent import Spent
from airflow_llm_provider.errors import LLMRetryableError
from airflow_llm_provider.testing.clock import ManualClock
from tests.engine.spending import A_MOMENT, LostBook, answered, gate_on, in_loop, passes, request


class TestBlocks:
    """Far from its limit a budget is reserved for many requests at a time."""

    @in_loop
    async def test_spare_most_requests_the_way_to_the_book(self):
        book = LostBook()
        gate = await gate_on(book, max_tokens_total=10_000_000)
        assert await passes(gate, *range(300))
        assert book.statements == 3
        assert gate.balance == Balance(reserved=Spent(tokens=300_000))

    @in_loop
    async def test_are_asked_for_once_by_all_who_wait(self):
        book = LostBook()
        gate = await gate_on(book, max_tokens_total=10_000_000)
        await asyncio.gather(*(passes(gate, index) for index in range(64)))
        assert book.statements == 1

    @in_loop
    async def test_of_one_process_leave_another_the_rest_to_the_last_token(self):
        book, clock = MemoryBook(), ManualClock()
        first = await gate_on(book, clock=clock, max_tokens_total=1_000_000)
        second = await gate_on(book, clock=clock, max_tokens_total=1_000_000)
        assert await passes(first, 0)
        assert await passes(second, *range(990))
        assert (await second.admit(request(990), now=0)).wait > 0
        first.settle(request(0), answered(1000), now=1)
        await clock.sleep(A_MOMENT)
        assert await passes(second, *range(990, 999), now=1)
        assert (await book.raise_to(Spent())).total == Spent(tokens=1_000_000)

    @in_loop
    async def test_come_free_when_nobody_takes_of_them(self):
        book, clock = MemoryBook(), ManualClock()
        gate = await gate_on(book, clock=clock, max_tokens_total=1_000_000)
        assert await passes(gate, 0)
        assert (await book.raise_to(Spent())).reserved == Spent(tokens=10_000)
        await clock.sleep(A_MOMENT)
        assert (await book.raise_to(Spent())).reserved == Spent(tokens=1000)

    @in_loop
    async def test_come_free_with_the_end_of_the_try(self):
        book = MemoryBook()
        gate = await gate_on(book, max_tokens_total=1_000_000)
        assert await passes(gate, 0)
        gate.settle(request(0), answered(150), now=1)
        await gate.aclose()
        assert await book.raise_to(Spent()) == Balance(spent=Spent(tokens=150))

    @in_loop
    async def test_come_free_with_the_next_try_of_one_that_was_killed(self):
        book, clock = MemoryBook(), ManualClock()
        gate = await gate_on(book, holder="shard", clock=clock, max_tokens_total=1_000_000)
        assert await passes(gate, 0, 1)
        gate.settle(request(0), answered(150), now=1)
        await clock.sleep(A_MOMENT)
        again = await gate_on(book, holder="shard", max_tokens_total=1_000_000)
        assert again.balance == Balance(spent=Spent(tokens=150))

    @in_loop
    async def test_outlive_those_who_waited_for_them(self):
        book = MemoryBook()
        gate = await gate_on(book, max_tokens_total=1_000_000)
        waiting = asyncio.ensure_future(gate.admit(request(0), now=0))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert gate.balance == Balance()
        assert await passes(gate, 0)
        await gate.aclose()
        assert await book.raise_to(Spent()) == Balance()

    @in_loop
    async def test_a_request_that_costs_more_than_reserved_takes_nothing_from_those_in_flight(self):
        book, clock = MemoryBook(), ManualClock()
        gate = await gate_on(book, clock=clock, max_tokens_total=3000)
        assert await passes(gate, 0, 1)
        gate.settle(request(0), answered(1900), now=1)
        await clock.sleep(A_MOMENT)
        after = Balance(spent=Spent(tokens=1900), reserved=Spent(tokens=1000))
        assert gate.balance == await book.raise_to(Spent()) == after

    @in_loop
    async def test_a_try_that_ends_while_the_book_is_away_waits_for_it(self):
        book, clock = LostBook(), ManualClock()
        gate = await gate_on(book, clock=clock, max_tokens_total=3000)
        assert await passes(gate, 0)
        gate.settle(request(0), answered(150), now=1)
        book.away = "before"
        closing = asyncio.ensure_future(gate.aclose(patience=15))
        await clock.sleep(5)
        assert not closing.done()
        book.away = None
        await closing
        assert await book.raise_to(Spent()) == Balance(spent=Spent(tokens=150))

    @in_loop
    async def test_a_book_that_stays_away_is_an_error_that_passes(self):
        book = LostBook()
        gate, book.away = await gate_on(book, max_tokens_total=3000), "before"
        with pytest.raises(LLMRetryableError):
            await gate.aclose(patience=15)
