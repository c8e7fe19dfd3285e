import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llm_provider.engine.book import Balance, BookAwayError, MemoryBook, Spent
from airflow_llm_provider.engine.budget import BudgetConfig, BudgetGate
from airflow_llm_provider.engine.call import FailureKind, Request
from airflow_llm_provider.engine.events import AttemptFinished
from airflow_llm_provider.engine.gate import PASS
from airflow_llm_provider.engine.usage import Usage
from airflow_llm_provider.engine.verdict import Verdict
from airflow_llm_provider.errors import LLMBudgetError, LLMInputError, LLMRetryableError


def request(index=0, *, prompt=100, cap=900):
    return Request(index=index, body={"model": "m"}, prompt_tokens=prompt, max_output_tokens=cap)


def answered(tokens, *, cost=None):
    usage = Usage(prompt_tokens=100, completion_tokens=tokens - 100)
    return AttemptFinished(index=0, attempt=1, verdict=Verdict.SUCCESS, usage=usage, cost_usd=cost)


def failed(kind):
    return AttemptFinished(index=0, attempt=1, verdict=Verdict.DROPPED, kind=kind)


def per_token(model, usage):
    return usage.total_tokens / 1000


def gate_on(book=None, *, on_share=None, price=per_token, patience=0.0, **config):
    return BudgetGate(
        BudgetConfig(**config), book or MemoryBook(), price=price, patience=patience, on_share=on_share
    )


class LostBook(MemoryBook):
    """A book that is away at times."""

    away = None

    def reserve(self, cost, *, limit, holder=""):
        self._check()
        return super().reserve(cost, limit=limit, holder=holder)

    def settle(self, reserved, spent, *, holder=""):
        self._check()
        return super().settle(reserved, spent, holder=holder)

    def _check(self):
        if self.away is not None:
            raise BookAwayError("away", unchanged=self.away == "unchanged")


class TestAdmit:
    def test_reserves_the_most_that_a_request_can_cost(self):
        gate = gate_on(max_tokens_total=2000)
        assert gate.admit(request(0), now=0) == PASS
        assert gate.admit(request(1), now=0) == PASS
        assert gate.balance == Balance(reserved=Spent(tokens=2000))

    def test_waits_while_requests_in_flight_may_give_back(self):
        gate = gate_on(max_tokens_total=1500)
        gate.admit(request(0), now=0)
        assert gate.admit(request(1), now=0).wait > 0
        gate.settle(request(0), answered(150), now=1)
        assert gate.admit(request(1), now=1) == PASS

    def test_I7_ends_the_run_before_exceeding_and_says_how_to_go_on(self):
        gate = gate_on(max_tokens_total=1500)
        gate.admit(request(0), now=0)
        gate.settle(request(0), answered(1000), now=1)
        stop = gate.admit(request(1), now=1).stop
        assert isinstance(stop, LLMBudgetError)
        assert "1,000 of max_tokens_total 1,500" in str(stop)
        assert "raise the budget" in str(stop)

    def test_B7_money_counts_over_all_shards(self):
        book = MemoryBook()
        gates = [gate_on(book, max_cost_usd=3.5) for _ in range(4)]
        passed = [gate.admit(request(), now=0) == PASS for gate in gates]
        assert passed == [True, True, True, False]

    def test_goes_on_after_the_cap_was_raised(self):
        book = MemoryBook()
        gate = gate_on(book, max_tokens_total=1000)
        gate.admit(request(0), now=0)
        gate.settle(request(0), answered(1000), now=0)
        assert gate.admit(request(1), now=0).stop is not None
        assert gate_on(book, max_tokens_total=2000).admit(request(1), now=0) == PASS

    def test_an_unknown_price_is_an_input_error_when_money_is_capped(self):
        gate = gate_on(max_cost_usd=1.0, price=lambda model, usage: None)
        assert isinstance(gate.admit(request(), now=0).stop, LLMInputError)

    def test_nobody_asks_for_a_price_when_tokens_are_capped(self):
        gate = gate_on(max_tokens_total=1000, price=None)
        assert gate.admit(request(), now=0) == PASS


class TestReserved:
    """What is only reserved may come free: it is waited for, and ends nothing for good."""

    def test_by_others_is_waited_for_as_long_as_anybody_settles(self):
        book = MemoryBook()
        other, gate = gate_on(book, max_tokens_total=2500), gate_on(book, max_tokens_total=2500, patience=60)
        for second in range(0, 200, 50):
            other.admit(request(second), now=second)
            other.admit(request(second + 1), now=second)
            assert gate.admit(request(), now=second).wait > 0
            other.settle(request(second), answered(101), now=second + 40)
            other.settle(request(second + 1), failed(FailureKind.ROW), now=second + 40)
        assert gate.admit(request(), now=201) == PASS

    def test_by_one_that_died_ends_the_run_as_one_to_be_tried_again(self):
        book = MemoryBook()
        gate_on(book, max_tokens_total=1500).admit(request(), now=0)
        gate = gate_on(book, max_tokens_total=1500, patience=60)
        assert gate.admit(request(), now=0).wait > 0
        assert gate.admit(request(), now=59).wait > 0
        stop = gate.admit(request(), now=60).stop
        assert isinstance(stop, LLMRetryableError)
        assert stop.retry_after == 60
        assert "0 of max_tokens_total 1,500 are spent and 1,000 reserved" in str(stop)
        assert not gate.fallback

    def test_does_not_keep_waiting_whom_the_spent_leaves_nothing(self):
        book = MemoryBook()
        other, gate = gate_on(book, max_tokens_total=2500), gate_on(book, max_tokens_total=2500, patience=60)
        for index in range(2):
            other.admit(request(index), now=0)
        other.settle(request(0), answered(1000), now=0)
        assert gate.admit(request(), now=0).wait > 0
        other.settle(request(1), answered(1000), now=0)
        assert isinstance(gate.admit(request(), now=0).stop, LLMBudgetError)


class TestLostBook:
    def test_is_waited_for_a_little_and_then_an_error_that_passes(self):
        book = LostBook()
        gate, book.away = gate_on(book, max_tokens_total=1500), "unchanged"
        assert gate.admit(request(), now=0).wait > 0
        assert gate.admit(request(), now=12).wait == 3
        assert isinstance(gate.admit(request(), now=15).stop, LLMRetryableError)
        book.away = None
        assert gate.admit(request(), now=18) == PASS

    def test_is_left_alone_between_attempts(self):
        book = LostBook()
        gate = gate_on(book, max_tokens_total=2500)
        gate.admit(request(0), now=0)
        gate.admit(request(1), now=0)
        book.away = "unknown"
        gate.settle(request(0), answered(150), now=1)
        gate.settle(request(1), answered(150), now=1.1)
        assert gate.admit(request(2), now=3).wait == 1
        book.away = None
        assert gate.admit(request(2), now=4) == PASS
        assert gate.balance == Balance(spent=Spent(tokens=150), reserved=Spent(tokens=2000))

    @pytest.mark.parametrize(
        ("away", "after"),
        [
            ("unchanged", Balance(spent=Spent(tokens=150), reserved=Spent(tokens=1000))),
            # Perhaps it heard: nothing may come free twice.
            ("unknown", Balance(reserved=Spent(tokens=2000))),
        ],
    )
    def test_hears_later_what_it_certainly_missed(self, away, after):
        book = LostBook()
        gate = gate_on(book, max_tokens_total=2500)
        gate.admit(request(0), now=0)
        book.away = away
        gate.settle(request(0), answered(150), now=1)
        book.away = None
        assert gate.admit(request(1), now=4) == PASS
        assert gate.balance == after


class TestSettle:
    @pytest.mark.parametrize("kind", [FailureKind.RATE_LIMITED, FailureKind.OVERLOADED, FailureKind.ROW])
    def test_what_was_refused_costs_nothing(self, kind):
        gate = gate_on(max_tokens_total=1000)
        gate.admit(request(), now=0)
        gate.settle(request(), failed(kind), now=1)
        assert gate.balance == Balance()

    @pytest.mark.parametrize("kind", [FailureKind.TIMEOUT, FailureKind.BAD_RESPONSE, None])
    def test_what_may_have_been_billed_stays_counted(self, kind):
        gate = gate_on(max_tokens_total=1000)
        gate.admit(request(), now=0)
        gate.settle(request(), failed(kind), now=1)
        assert gate.balance == Balance(spent=Spent(tokens=1000))

    def test_what_was_not_sent_costs_nothing(self):
        gate = gate_on(max_tokens_total=1000, max_cost_usd=9.0)
        gate.admit(request(), now=0)
        gate.withdraw(request(), now=1)
        assert gate.balance == Balance()

    def test_takes_the_real_cost_and_reckons_it_when_nobody_did(self):
        gate = gate_on(max_cost_usd=9.0)
        for index, cost in enumerate((0.25, None)):
            gate.admit(request(index), now=0)
            gate.settle(request(index), answered(200, cost=cost), now=1)
        assert gate.balance.spent.cost_usd == pytest.approx(0.45)


class TestShare:
    def test_warns_once_at_80_percent_and_once_at_95(self):
        shares = []
        gate = gate_on(max_tokens_total=10_000, on_share=shares.append)
        for index in range(10):
            gate.admit(request(index), now=0)
            gate.settle(request(index), answered(1000), now=0)
        assert shares == [0.8, 1.0]

    def test_calls_for_the_fallback_from_95_percent(self):
        gate = gate_on(max_cost_usd=10.0)
        for index in range(9):
            gate.admit(request(index), now=0)
            gate.settle(request(index), answered(1000), now=0)
        gate.admit(request(9), now=0)
        assert not gate.fallback
        gate.settle(request(9), answered(1000), now=0)
        assert gate.fallback


class TestProperties:
    @settings(max_examples=100, deadline=None)
    @given(
        limit=st.integers(1, 5000),
        steps=st.lists(
            st.tuples(st.sampled_from(["admit", "settle", "withdraw", "die"]), st.floats(0, 1)), max_size=80
        ),
    )
    def test_what_is_spent_and_in_flight_never_exceeds_the_budget(self, limit, steps):
        book, billed, in_flight, index = MemoryBook(), 0, {}, 0
        gates = [gate_on(book, max_tokens_total=limit) for _ in range(3)]
        for step, share in steps:
            gate = gates[int(share * 2.99)]
            mine = [number for number, (owner, _) in in_flight.items() if owner is gate]
            if step == "admit":
                index += 1
                asked = request(index, prompt=int(share * 300), cap=int(share * 600))
                if gate.admit(asked, now=0) == PASS:
                    in_flight[index] = (gate, asked)
            elif mine and step != "die":
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
            assert billed + worst <= limit
            assert book.raise_to(Spent()) == Balance(spent=Spent(tokens=billed), reserved=Spent(tokens=worst))


class TestConfig:
    @pytest.mark.parametrize(
        "fields",
        [
            {"max_tokens_total": 0},
            {"max_tokens_total": 1.5},
            {"max_tokens_total": True},
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
