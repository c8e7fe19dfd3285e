import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llm_provider.engine.budget.book import Balance, SessionLostError
from airflow_llm_provider.engine.budget.config import BudgetConfig
from airflow_llm_provider.engine.budget.gate import BudgetGate
from airflow_llm_provider.engine.budget.memory_book import MemoryBook
from airflow_llm_provider.engine.budget.spent import Spent
from airflow_llm_provider.engine.call import FailureKind
from airflow_llm_provider.engine.events import AttemptFinished
from airflow_llm_provider.engine.gate import PASS
from airflow_llm_provider.engine.usage import Usage
from airflow_llm_provider.engine.verdict import Verdict
from airflow_llm_provider.errors import LLMBudgetError, LLMInputError, LLMRetryableError
from airflow_llm_provider.testing.clock import ManualClock
from tests.engine.spending import A_MOMENT, LostBook, answered, failed, gate_on, in_loop, passes, request


class TestAdmit:
    @in_loop
    async def test_reserves_the_most_that_a_request_can_cost(self):
        gate = await gate_on(max_tokens_total=2000)
        assert (await gate.admit(request(0), now=0)) == PASS
        assert (await gate.admit(request(1), now=0)) == PASS
        assert gate.balance == Balance(reserved=Spent(tokens=2000))

    @in_loop
    async def test_waits_while_requests_in_flight_may_give_back(self):
        gate = await gate_on(max_tokens_total=1500)
        (await gate.admit(request(0), now=0))
        assert (await gate.admit(request(1), now=0)).wait > 0
        gate.settle(request(0), answered(150), now=1)
        assert (await gate.admit(request(1), now=1)) == PASS

    @in_loop
    async def test_I7_ends_the_run_before_exceeding_and_says_how_to_go_on(self):
        gate = await gate_on(max_tokens_total=1500)
        (await gate.admit(request(0), now=0))
        gate.settle(request(0), answered(1000), now=1)
        stop = (await gate.admit(request(1), now=1)).stop
        assert isinstance(stop, LLMBudgetError)
        assert "1,000 of max_tokens_total 1,500" in str(stop)
        assert "raise the budget" in str(stop)

    @in_loop
    async def test_B7_money_counts_over_all_shards(self):
        book = MemoryBook()
        gates = [await gate_on(book, max_cost_usd=3.5) for _ in range(4)]
        passed = [(await gate.admit(request(), now=0)) == PASS for gate in gates]
        assert passed == [True, True, True, False]

    @in_loop
    async def test_goes_on_after_the_cap_was_raised(self):
        book = MemoryBook()
        gate = await gate_on(book, max_tokens_total=1000)
        (await gate.admit(request(0), now=0))
        gate.settle(request(0), answered(1000), now=0)
        assert (await gate.admit(request(1), now=0)).stop is not None
        assert await passes(await gate_on(book, max_tokens_total=2000), 1)

    @in_loop
    async def test_an_unknown_price_is_an_input_error_when_money_is_capped(self):
        gate = await gate_on(max_cost_usd=1.0, price=lambda model, usage: None)
        assert isinstance((await gate.admit(request(), now=0)).stop, LLMInputError)

    @in_loop
    async def test_nobody_asks_for_a_price_when_tokens_are_capped(self):
        gate = await gate_on(max_tokens_total=1000, price=None)
        assert (await gate.admit(request(), now=0)) == PASS


class TestReserved:
    """What is only reserved may come free: it is waited for, and ends nothing for good."""

    async def two_gates(self, **config):
        book, self.clock = MemoryBook(), ManualClock()
        return [await gate_on(book, clock=self.clock, patience=60, **config) for _ in range(2)]

    @in_loop
    async def test_by_others_is_waited_for_as_long_as_anybody_settles(self):
        other, gate = await self.two_gates(max_tokens_total=2500)
        for second in range(0, 200, 50):
            assert await passes(other, second, second + 1, now=second)
            assert (await gate.admit(request(), now=second)).wait > 0
            other.settle(request(second), answered(101), now=second + 40)
            other.settle(request(second + 1), failed(FailureKind.ROW), now=second + 40)
            await self.clock.sleep(A_MOMENT)
        assert await passes(gate, 0, now=201)

    @in_loop
    async def test_by_one_that_died_ends_the_run_as_one_to_be_tried_again(self):
        dead, gate = await self.two_gates(max_tokens_total=1500)
        assert await passes(dead, 0)
        assert (await gate.admit(request(), now=0)).wait > 0
        assert (await gate.admit(request(), now=59)).wait > 0
        stop = (await gate.admit(request(), now=60)).stop
        assert isinstance(stop, LLMRetryableError)
        assert stop.retry_after == 60
        assert "0 of max_tokens_total 1,500 are spent and 1,000 reserved" in str(stop)
        assert not gate.fallback

    @in_loop
    async def test_does_not_keep_waiting_whom_the_spent_leaves_nothing(self):
        other, gate = await self.two_gates(max_tokens_total=2500)
        assert await passes(other, 0, 1)
        other.settle(request(0), answered(1000), now=0)
        assert (await gate.admit(request(), now=0)).wait > 0
        other.settle(request(1), answered(1000), now=0)
        await self.clock.sleep(A_MOMENT)
        assert isinstance((await gate.admit(request(), now=0)).stop, LLMBudgetError)


class TestLostBook:
    @in_loop
    async def test_is_waited_for_a_little_and_then_an_error_that_passes(self):
        book = LostBook()
        gate, book.away = await gate_on(book, max_tokens_total=1500), "before"
        assert (await gate.admit(request(), now=0)).wait > 0
        assert (await gate.admit(request(), now=12)).wait > 0
        assert isinstance((await gate.admit(request(), now=15)).stop, LLMRetryableError)
        book.away = None
        assert await passes(gate, 0, now=18)

    @pytest.mark.parametrize("away", ["before", "after"])
    @in_loop
    async def test_hears_once_what_it_missed_or_what_its_answer_was_lost_to(self, away):
        book, clock = LostBook(), ManualClock()
        gate = await gate_on(book, clock=clock, max_tokens_total=3500)
        assert await passes(gate, 0, 1)
        book.away = away
        gate.settle(request(0), answered(150), now=1)
        await clock.sleep(A_MOMENT)
        assert (await gate.admit(request(2), now=2)).wait > 0
        book.away = None
        assert await passes(gate, 2, now=3)
        after = Balance(spent=Spent(tokens=150), reserved=Spent(tokens=2000))
        assert gate.balance == await book.raise_to(Spent()) == after

    @in_loop
    async def test_holds_back_what_is_reserved_already_since_a_killed_process_would_take_it_along(self):
        book, clock = LostBook(), ManualClock()
        gate = await gate_on(book, clock=clock, max_tokens_total=1_000_000)
        assert await passes(gate, 0, 1)
        book.away = "before"
        gate.settle(request(0), answered(150), now=1)
        await clock.sleep(A_MOMENT)
        assert (await gate.admit(request(2), now=2)).wait > 0

    @in_loop
    async def test_one_that_was_flushed_ends_the_run_as_one_to_be_tried_again(self):
        gate = await gate_on(MemoryBook(), max_tokens_total=1500)
        gate._allowance._book = MemoryBook()
        with pytest.raises(SessionLostError, match="Run again"):
            await gate.admit(request(), now=0)

    @in_loop
    async def test_one_that_was_flushed_takes_along_what_was_reserved_in_it(self):
        clock = ManualClock()
        gate = await gate_on(MemoryBook(), clock=clock, max_tokens_total=1_000_000)
        assert await passes(gate, 0, 1)
        gate._allowance._book = MemoryBook()
        # In the midst of work, when a block is kept.
        await clock.sleep(0.05)
        gate.settle(request(0), answered(150), now=1)
        await clock.sleep(0.1)
        with pytest.raises(SessionLostError):
            await gate.admit(request(2), now=2)

    @in_loop
    async def test_one_that_was_flushed_is_made_good_by_what_is_known_at_the_end(self):
        gate = BudgetGate(BudgetConfig(max_tokens_total=5000), MemoryBook(), clock=ManualClock())
        known = Spent()
        await gate.open(lambda: known)
        assert await passes(gate, 0)
        gate._allowance._book = book = MemoryBook()
        await book.raise_to(Spent(tokens=10))  # by another, who does not know the answer yet
        gate.settle(request(0), answered(150), now=1)
        known = Spent(tokens=160)
        await gate.aclose()
        assert await book.raise_to(Spent()) == Balance(spent=Spent(tokens=160))

    @in_loop
    async def test_one_that_was_lost_between_two_tries_is_made_good_by_what_is_known(self):
        gate = BudgetGate(BudgetConfig(max_tokens_total=1500), MemoryBook(), clock=ManualClock())
        await gate.open(lambda: Spent(tokens=600))
        assert isinstance((await gate.admit(request(), now=0)).stop, LLMBudgetError)


class TestSettle:
    @pytest.mark.parametrize("kind", [FailureKind.RATE_LIMITED, FailureKind.OVERLOADED, FailureKind.ROW])
    @in_loop
    async def test_what_was_refused_costs_nothing(self, kind):
        gate = await gate_on(max_tokens_total=1000)
        (await gate.admit(request(), now=0))
        gate.settle(request(), failed(kind), now=1)
        assert gate.balance == Balance()

    @pytest.mark.parametrize("kind", [FailureKind.TIMEOUT, FailureKind.BAD_RESPONSE, None])
    @in_loop
    async def test_what_may_have_been_billed_stays_counted(self, kind):
        gate = await gate_on(max_tokens_total=1000)
        (await gate.admit(request(), now=0))
        gate.settle(request(), failed(kind), now=1)
        assert gate.balance == Balance(spent=Spent(tokens=1000))

    @in_loop
    async def test_what_was_not_sent_costs_nothing(self):
        gate = await gate_on(max_tokens_total=1000, max_cost_usd=9.0)
        (await gate.admit(request(), now=0))
        gate.withdraw(request(), now=1)
        assert gate.balance == Balance()

    @in_loop
    async def test_takes_the_real_cost_and_reckons_it_when_nobody_did(self):
        gate = await gate_on(max_cost_usd=9.0)
        for index, cost in enumerate((0.25, None)):
            (await gate.admit(request(index), now=0))
            gate.settle(request(index), answered(200, cost=cost), now=1)
        assert gate.balance.spent.cost_usd == pytest.approx(0.45)


class TestShare:
    @in_loop
    async def test_warns_once_at_80_percent_and_once_at_95(self):
        shares = []
        gate = await gate_on(max_tokens_total=10_000, on_share=shares.append)
        for index in range(10):
            (await gate.admit(request(index), now=0))
            gate.settle(request(index), answered(1000), now=0)
        assert shares == [0.8, 1.0]

    @in_loop
    async def test_calls_for_the_fallback_from_95_percent(self):
        gate = await gate_on(max_cost_usd=10.0)
        for index in range(9):
            (await gate.admit(request(index), now=0))
            gate.settle(request(index), answered(1000), now=0)
        (await gate.admit(request(9), now=0))
        assert not gate.fallback
        gate.settle(request(9), answered(1000), now=0)
        assert gate.fallback


class TestProperties:
    @settings(max_examples=100)
    @given(
        limit=st.integers(1, 100_000),
        steps=st.lists(
            st.tuples(
                st.sampled_from(["admit", "admit", "settle", "withdraw", "wait", "die"]), st.floats(0, 1)
            ),
            max_size=80,
        ),
    )
    @in_loop
    async def test_what_is_spent_and_in_flight_never_exceeds_the_budget(self, limit, steps):
        book, clock, billed, in_flight, index = MemoryBook(), ManualClock(), 0, {}, 0
        gates = {n: await gate_on(book, holder=str(n), clock=clock, max_tokens_total=limit) for n in range(3)}
        for step, share in steps:
            n = int(share * 2.99)
            gate = gates[n]
            mine = [number for number, (owner, _) in in_flight.items() if owner is gate]
            if step == "admit":
                index += 1
                asked = request(index, prompt=1 + int(share * 300), cap=int(share * 600))
                if await gate.admit(asked, now=0) == PASS:
                    in_flight[index] = (gate, asked)
            elif step in {"wait", "die"}:
                await clock.sleep(A_MOMENT)
                if step == "die":
                    in_flight = {number: sent for number, sent in in_flight.items() if number not in mine}
                    gates[n] = await gate_on(book, holder=str(n), clock=clock, max_tokens_total=limit)
            elif mine:
                _, asked = in_flight.pop(mine[0])
                if step == "settle":
                    used = Usage(
                        prompt_tokens=asked.prompt_tokens,
                        completion_tokens=int(share * asked.max_output_tokens),
                    )
                    billed += used.total_tokens
                    event = AttemptFinished(index=0, attempt=1, verdict=Verdict.SUCCESS, usage=used)
                    gate.settle(asked, event, now=0)
                else:
                    gate.withdraw(asked, now=0)
            worst = sum(asked.prompt_tokens + asked.max_output_tokens for _, asked in in_flight.values())
            assert billed + worst <= (await book.raise_to(Spent())).total.tokens <= limit
        for gate, asked in in_flight.values():
            gate.withdraw(asked, now=0)
        for gate in gates.values():
            await gate.aclose()
        assert await book.raise_to(Spent()) == Balance(spent=Spent(tokens=billed))


class TestConfig:
    @pytest.mark.parametrize(
        "fields",
        [
            {"max_tokens_total": 0},
            {"max_tokens_total": 1.5},
            {"max_tokens_total": True},
            {"max_tokens_total": 10**30},
            {"max_cost_usd": 0},
            {"max_cost_usd": math.nan},
            {"max_cost_usd": "1"},
            {"warn_share": 0},
            {"fallback_share": 1.1},
        ],
    )
    def test_refuses_what_makes_no_sense(self, fields):
        with pytest.raises(LLMInputError, match=next(iter(fields))):
            BudgetConfig(**fields)
