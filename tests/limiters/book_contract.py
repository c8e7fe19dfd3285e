"""What every account book must do, and what its tests need."""

from __future__ import annotations

import asyncio
import functools

import pytest

from airflow_llm_provider.engine.budget.book import Balance, Holder, SessionLostError, Statement
from airflow_llm_provider.engine.budget.spent import Spent

LIMIT = Spent(tokens=1000, cost_usd=1.0)
NOTHING = Spent()
ONE, TWO = Holder(name="one", session="1"), Holder(name="two", session="1")


def wants(tokens, cost_usd=0.0, *, spent=NOTHING, kept=NOTHING):
    """Say what is to be reserved."""
    wanted = Spent(tokens=tokens, cost_usd=cost_usd)
    return Statement(spent=spent, kept=kept, wanted=wanted)


def in_loop(test):
    """Run a test in a loop of its own, and close its books there."""

    async def run(self, *arguments, **more):
        try:
            await test(self, *arguments, **more)
        finally:
            for book in self.opened:
                await book.aclose()

    @functools.wraps(test)
    def start(self, *arguments, **more):
        self.opened = []
        asyncio.run(run(self, *arguments, **more))

    return start


class BookContract:
    """What every account book must do; ``make`` opens the same book once more."""

    def book(self):
        self.opened.append(self.make())
        return self.opened[-1]

    async def state(self, holder, statement, *, limit=LIMIT):
        """Speak by an object of the book of one's own."""
        return await self.book().state(holder, statement, limit=limit)

    async def begin(self, *holders):
        book = self.book()
        for holder in holders:
            await book.open(holder, {})
        return book

    @in_loop
    async def test_reserves_up_to_the_limit_and_not_beyond(self):
        await self.begin(ONE)
        first = Balance(reserved=Spent(tokens=900, cost_usd=0.5))
        assert await self.state(ONE, wants(900, 0.5)) == (True, first)
        kept = first.reserved
        assert await self.state(ONE, wants(1001, 0.5, kept=kept)) == (False, first)
        assert await self.state(ONE, wants(900, 1.1, kept=kept)) == (False, first)
        assert await self.state(ONE, wants(1000, 1.0, kept=kept)) == (True, Balance(reserved=LIMIT))

    @in_loop
    async def test_spent_and_reserved_by_all_are_limited_together(self):
        book = await self.begin(ONE, TWO)
        await book.raise_to(Spent(tokens=400))
        assert (await self.state(ONE, wants(500)))[0]
        assert not (await self.state(TWO, wants(101)))[0]
        assert (await self.state(TWO, wants(100)))[0]

    @in_loop
    async def test_replaces_what_was_reserved_by_what_was_spent(self):
        await self.begin(ONE)
        await self.state(ONE, wants(500, 0.5))
        spent, rest = Spent(tokens=100, cost_usd=0.125), Spent(tokens=200, cost_usd=0.25)
        after = Balance(spent=spent, reserved=rest)
        assert await self.state(ONE, Statement(spent=spent, kept=rest, wanted=rest)) == (True, after)
        assert await self.state(ONE, Statement(spent=spent)) == (True, Balance(spent=spent))

    @in_loop
    async def test_what_was_spent_counts_also_when_what_is_wanted_does_not_fit(self):
        await self.begin(ONE)
        await self.state(ONE, wants(900))
        spent, kept = Spent(tokens=300), Spent(tokens=600)
        refused = (False, Balance(spent=spent, reserved=kept))
        assert await self.state(ONE, wants(701, spent=spent, kept=kept)) == refused

    @in_loop
    async def test_keeps_what_is_reserved_when_the_limit_has_become_lower(self):
        await self.begin(ONE)
        await self.state(ONE, wants(900))
        kept = Spent(tokens=800)
        lower = Spent(tokens=10, cost_usd=1.0)
        assert await self.state(ONE, wants(800, kept=kept), limit=lower) == (True, Balance(reserved=kept))

    @in_loop
    async def test_a_statement_may_be_made_again_when_its_answer_was_lost(self):
        await self.begin(ONE)
        statement = wants(700, 0.5, spent=Spent(tokens=300, cost_usd=0.25))
        answers = [await self.state(ONE, statement) for _ in range(3)]
        balance = Balance(spent=Spent(tokens=300, cost_usd=0.25), reserved=Spent(tokens=700, cost_usd=0.5))
        assert answers == [(True, balance)] * 3

    @in_loop
    async def test_what_a_former_session_had_reserved_comes_free_and_nobody_elses(self):
        book = await self.begin(ONE, TWO)
        await self.state(ONE, wants(300, 0.25, spent=Spent(tokens=7)))
        await self.state(TWO, wants(400, 0.5))
        freed = Balance(spent=Spent(tokens=7), reserved=Spent(tokens=400, cost_usd=0.5))
        assert await book.open(Holder(name="one", session="2"), {}) == freed

    @pytest.mark.parametrize(
        ("paid", "expected"),
        [
            ({"1": Spent(tokens=50, cost_usd=0.25)}, Spent(tokens=50, cost_usd=0.5)),
            ({"1": Spent(tokens=10, cost_usd=0.75)}, Spent(tokens=30, cost_usd=0.75)),
            ({"0": Spent(tokens=90, cost_usd=0.75)}, Spent(tokens=30, cost_usd=0.5)),
        ],
    )
    @in_loop
    async def test_what_a_former_session_has_paid_counts_also_if_it_could_not_tell(self, paid, expected):
        book = await self.begin(ONE)
        await self.state(ONE, wants(300, 0.25, spent=Spent(tokens=30, cost_usd=0.5)))
        assert await book.open(Holder(name="one", session="2"), paid) == Balance(spent=expected)

    @in_loop
    async def test_what_a_session_has_told_to_the_end_is_not_counted_again(self):
        book = await self.begin(ONE)
        spent = Spent(tokens=30, cost_usd=0.5)
        await self.state(ONE, Statement(spent=spent, last=True))
        paid = {"1": Spent(tokens=30, cost_usd=0.25)}
        assert await book.open(Holder(name="one", session="2"), paid) == Balance(spent=spent)

    @in_loop
    async def test_hears_no_former_session_any_more(self):
        await self.begin(ONE)
        book = await self.begin(Holder(name="one", session="2"))
        with pytest.raises(SessionLostError, match="Run again"):
            await self.state(ONE, wants(10, spent=Spent(tokens=5)))
        assert await book.raise_to(Spent()) == Balance()

    @in_loop
    async def test_a_session_counts_from_zero(self):
        await self.begin(ONE)
        await self.state(ONE, Statement(spent=Spent(tokens=30)))
        again = Holder(name="one", session="2")
        await self.begin(again)
        assert await self.state(again, Statement(spent=Spent(tokens=4))) == (
            True,
            Balance(spent=Spent(tokens=34)),
        )

    @in_loop
    async def test_knows_a_session_no_longer_after_its_last_statement(self):
        await self.begin(ONE)
        await self.state(ONE, wants(100))
        spent = Balance(spent=Spent(tokens=60))
        assert await self.state(ONE, Statement(spent=spent.spent, last=True)) == (True, spent)
        with pytest.raises(SessionLostError):
            await self.state(ONE, Statement(spent=spent.spent, last=True))
        assert await self.book().raise_to(Spent()) == spent

    @in_loop
    async def test_is_raised_to_what_is_known_and_never_lowered(self):
        book = self.book()
        assert (await book.raise_to(Spent(tokens=70, cost_usd=0.5))).spent == Spent(tokens=70, cost_usd=0.5)
        assert (await book.raise_to(Spent(tokens=10, cost_usd=0.75))).spent == Spent(tokens=70, cost_usd=0.75)

    @in_loop
    async def test_adds_large_numbers_exactly(self):
        book = await self.begin(ONE)
        await book.raise_to(Spent(tokens=10**14))
        assert (await self.state(ONE, Statement(spent=Spent(tokens=1))))[1].spent == Spent(tokens=10**14 + 1)

    @in_loop
    async def test_many_holders_come_and_go(self):
        holders = [Holder(name=f"holder {n}", session="1") for n in range(40)]
        book = await self.begin(*holders)
        for holder in holders:
            await self.state(holder, wants(10))
        for holder in holders[1:]:
            await self.state(holder, Statement(last=True))
        assert await book.raise_to(Spent()) == Balance(reserved=Spent(tokens=10))
        assert (await self.state(holders[0], Statement(last=True)))[1] == Balance()

    @in_loop
    async def test_money_without_a_limit(self):
        await self.begin(ONE)
        assert (await self.state(ONE, wants(1, 1e6), limit=Spent(tokens=1, cost_usd=float("inf"))))[0]
