"""Several accounts, and a fallback model, in one engine and in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llm_provider.engine.breaker import Breaker, BreakerConfig, BreakerGate
from airflow_llm_provider.engine.budget.config import BudgetConfig
from airflow_llm_provider.engine.budget.gate import BudgetGate
from airflow_llm_provider.engine.budget.memory_book import MemoryBook
from airflow_llm_provider.engine.budget.spent import Spent
from airflow_llm_provider.engine.call import CallError, FailureKind, Judgement, Request
from airflow_llm_provider.engine.config import EngineConfig
from airflow_llm_provider.engine.events import AccountLost, BreakerChanged
from airflow_llm_provider.engine.limits.account import AccountLimiter
from airflow_llm_provider.engine.limits.rate_limits import RateLimits
from airflow_llm_provider.engine.route import Route
from airflow_llm_provider.engine.runner import Engine
from airflow_llm_provider.engine.status import RowStatus
from airflow_llm_provider.errors import (
    LLMAuthenticationError,
    LLMBudgetError,
    LLMConfigurationError,
    LLMError,
    LLMInputError,
    LLMQuotaError,
    LLMRetryableError,
)
from airflow_llm_provider.testing.clock import ManualClock
from airflow_llm_provider.testing.scripted_client import ScriptedClient

WRONG_KEY = CallError(FailureKind.AUTHENTICATION, "invalid_api_key", "no", status_code=401)
NO_CREDIT = CallError(FailureKind.QUOTA, "insufficient_quota", "no", status_code=429)
DOWN = CallError(FailureKind.OVERLOADED, "http_503", "down", status_code=503)
CHOKES = CallError(FailureKind.OVERLOADED, "http_500", "no", status_code=500)
TOO_MANY = CallError(FailureKind.RATE_LIMITED, "http_429", "slow", status_code=429, retry_after=30.0)


class Events(list):
    def on_event(self, event):
        self.append(event)

    def of(self, kind):
        return [event for event in self if isinstance(event, kind)]


class Run:
    """One run over several routes."""

    def __init__(self, rows=60, *, concurrency=8, clock=None, **config):
        self.clock = clock or ManualClock()
        self.rows, self.events, self.outcomes = rows, Events(), []
        self.config = EngineConfig(concurrency=concurrency, **config)
        self.clients = {}

    def route(self, name, script=(), *, latency=0.1, limits=None, **options):
        client = ScriptedClient(script, latency=latency, clock=self.clock)
        self.clients[name] = client
        limiter = AccountLimiter(limits=limits, clock=self.clock) if limits else None
        return Route(client=client, name=name, limiter=limiter, **options)

    def go(self, *routes, **options):
        engine = Engine(
            routes,
            lambda reply: Judgement(status=RowStatus.SUCCESS, answer=reply.text),
            config=self.config,
            clock=self.clock,
            rng=random.Random(5),
            observer=self.events,
            **options,
        )
        requests = (
            Request(index=n, body={"model": "m", "messages": [n]}, prompt_tokens=20, max_output_tokens=30)
            for n in range(self.rows)
        )

        async def send():
            if "budget" in options:
                await options["budget"].open(Spent)
            return await engine.run(requests, self.outcomes.append, total=self.rows)

        try:
            self.report = asyncio.run(send())
        except LLMError as error:
            self.report = engine.report
            return error
        return None

    @property
    def accounts(self):
        return Counter(outcome.account for outcome in self.outcomes)


def broken_after(seconds, clock):
    return lambda _call: DOWN if clock.monotonic() >= seconds else "ok"


def breaker(**config):
    return BreakerGate(Breaker(BreakerConfig(**config)))


class TestTurns:
    def test_accounts_share_the_rows_by_weight_and_rows_say_whose_they_are(self):
        run = Run(rows=90)
        assert run.go(run.route("a", weight=2), run.route("b")) is None
        assert run.accounts == {"a": 60, "b": 30}

    def test_turns_are_spread_evenly(self):
        run = Run(rows=12, concurrency=1)
        run.go(run.route("a", weight=2), run.route("b"))
        assert [outcome.account for outcome in run.outcomes] == list("abaabaabaaba")

    def test_each_account_uses_its_own_limit(self):
        run = Run(rows=200, concurrency=16)
        slow, fast = RateLimits(requests_per_minute=60), RateLimits(requests_per_minute=540)
        assert run.go(run.route("slow", limits=slow), run.route("fast", limits=fast)) is None
        assert run.clock.monotonic() <= 200 / 10 + 8  # the last rows that queue at the slow one
        assert run.accounts["fast"] >= 150

    def test_one_account_needs_no_name(self):
        run = Run(rows=2)
        run.go(run.route(None))
        assert run.accounts == {None: 2}

    def test_a_weight_is_at_least_one(self):
        with pytest.raises(LLMInputError, match="weight"):
            Run().route("a", weight=0)


class TestCooling:
    def test_a_paused_account_is_passed_over(self):
        run = Run(rows=60)
        assert run.go(run.route("a", [TOO_MANY]), run.route("b")) is None
        assert run.clock.monotonic() < 5
        assert run.accounts["b"] > 40

    def test_when_all_are_paused_the_first_to_come_back_is_waited_for(self):
        run = Run(rows=20)
        late = CallError(FailureKind.RATE_LIMITED, "http_429", "slow", retry_after=200.0)
        routes = (
            run.route("a", lambda _: TOO_MANY if run.clock.monotonic() < 29 else "ok"),
            run.route("b", lambda _: late),
        )
        assert run.go(*routes) is None
        assert run.report.rows_by_status == {"success": 20}
        assert 30 <= run.clock.monotonic() <= 60
        assert len(run.clients["b"].calls) <= 8

    def test_an_account_whose_endpoint_is_down_is_only_probed(self):
        run = Run(rows=400)
        down = run.route("a", lambda _: DOWN, gates=(breaker(),))
        assert run.go(down, run.route("b", gates=(breaker(),))) is None
        assert run.report.rows_by_status == {"success": 400}
        assert len(run.clients["a"].calls) <= 8 + run.clock.monotonic() + 1
        [opened] = run.events.of(BreakerChanged)
        assert (opened.account, opened.state) == ("a", "open")

    def test_one_that_stays_down_is_given_up_and_the_other_goes_on(self):
        run = Run(rows=400, concurrency=2)
        down = run.route("a", lambda _: DOWN, gates=(breaker(max_open=5.0),))
        assert run.go(down, run.route("b")) is None
        assert run.report.rows_by_status == {"success": 400}
        assert len(run.events.of(AccountLost)) == 1

    def test_C10_when_all_stay_down_the_run_ends_as_retryable(self):
        run = Run(rows=400)
        routes = [run.route(name, lambda _: DOWN, gates=(breaker(max_open=5.0),)) for name in "ab"]
        assert isinstance(run.go(*routes), LLMRetryableError)
        assert sum(len(client.calls) for client in run.clients.values()) <= 40
        assert run.report.pending == 400

    def test_a_row_too_large_for_one_account_goes_out_on_another(self):
        run = Run(rows=10)
        small, large = RateLimits(tokens_per_minute=10), RateLimits(tokens_per_minute=100_000)
        assert run.go(run.route("small", limits=small), run.route("large", limits=large)) is None
        assert run.accounts == {"large": 10}

    def test_C6_a_row_too_large_for_all_ends_alone(self):
        run = Run(rows=3)
        small = RateLimits(tokens_per_minute=10)
        assert run.go(run.route("a", limits=small), run.route("b", limits=small)) is None
        assert run.report.rows_by_status == {"request_too_large": 3}


class TestLostAccount:
    @pytest.mark.parametrize("error", [WRONG_KEY, NO_CREDIT])
    def test_the_others_go_on_and_no_row_is_lost(self, error):
        run = Run(rows=60)
        assert run.go(run.route("a", lambda _: error), run.route("b")) is None
        assert run.accounts == {"b": 60}
        [lost] = run.events.of(AccountLost)
        assert lost.account == "a"
        assert len(run.clients["a"].calls) <= 8

    def test_the_last_one_ends_the_run_and_is_named(self):
        run = Run(rows=60)
        error = run.go(run.route("a", lambda _: WRONG_KEY), run.route("b", lambda _: NO_CREDIT))
        assert isinstance(error, (LLMAuthenticationError, LLMQuotaError))
        assert str(error).startswith("Account ")
        assert run.report.pending == 60

    def test_C18_a_refused_parameter_ends_the_run_whatever_the_account(self):
        run = Run(rows=60)
        refused = CallError(FailureKind.CONFIGURATION, "unsupported_value", "temperature", status_code=400)
        error = run.go(run.route("a", lambda _: refused), run.route("b"))
        assert isinstance(error, LLMConfigurationError)
        assert len(run.clients["a"].calls) == 1

    def test_one_halted_by_another_task_is_left_out(self):
        run = Run(rows=40, concurrency=1)
        route = run.route("a", limits=RateLimits(requests_per_minute=60_000))

        def halting(call):
            if call.number == 5:
                asyncio.get_running_loop().create_task(route.limiter.halt(FailureKind.QUOTA))
            return "ok"

        run.clients["a"]._respond = halting
        assert run.go(route, run.route("b")) is None
        assert run.report.rows_by_status == {"success": 40}
        assert run.accounts["a"] < run.accounts["b"]


class TestFallback:
    def test_stands_in_while_the_breaker_is_open(self):
        run = Run(rows=300)
        primary = run.route("a", broken_after(1.0, run.clock), gates=(breaker(max_open=60.0),))
        second = run.route("b", model="cheap", fallback=True)
        assert run.go(primary, second) is None
        assert run.report.rows_by_status == {"success": 300}
        assert {body["model"] for body in run.clients["b"].bodies()} == {"cheap"}
        assert {body["model"] for body in run.clients["a"].bodies()} == {"m"}
        assert run.accounts["a"] >= 60

    def test_goes_on_when_the_first_is_given_up(self):
        run = Run(rows=300, concurrency=2)
        primary = run.route("a", lambda _: DOWN, gates=(breaker(max_open=3.0),))
        assert run.go(primary, run.route("b", model="cheap", fallback=True)) is None
        assert run.accounts == {"b": 300}

    def test_does_not_stand_in_for_a_wrong_key(self):
        run = Run()
        error = run.go(run.route("a", lambda _: WRONG_KEY), run.route("b", fallback=True))
        assert isinstance(error, LLMAuthenticationError)
        assert run.clients["b"].calls == []

    def test_is_not_used_while_the_first_answers_or_is_paused(self):
        run = Run(rows=30)
        assert run.go(run.route("a", ["ok", TOO_MANY]), run.route("b", fallback=True)) is None
        assert run.accounts == {"a": 30}

    def test_finishes_what_the_first_can_no_longer_afford(self):
        run = Run(rows=100)
        gate = BudgetGate(
            BudgetConfig(max_cost_usd=1.0),
            MemoryBook(),
            clock=run.clock,
            price=lambda model, usage: usage.total_tokens * (0.001 if model == "m" else 0.00001),
        )
        primary = run.route("a", price=lambda _model, usage: usage.total_tokens * 0.001)
        second = run.route(
            "b", model="cheap", fallback=True, price=lambda _model, usage: usage.total_tokens * 0.00001
        )
        assert run.go(primary, second, budget=gate) is None
        assert run.report.rows_by_status == {"success": 100}
        assert 50 <= run.accounts["a"] <= 70
        assert gate.balance.spent.cost_usd <= 1.0

    def test_that_cannot_take_the_request_at_all_is_no_way_out(self):
        run = Run(rows=400)
        gate = BudgetGate(BudgetConfig(max_tokens_total=1000), MemoryBook(), clock=run.clock)
        small = run.route("b", fallback=True, limits=RateLimits(tokens_per_minute=10))
        error = run.go(run.route("a"), small, budget=gate)
        assert isinstance(error, LLMBudgetError)
        assert run.clients["b"].calls == []

    def test_I7_and_the_run_stops_when_that_is_too_dear_as_well(self):
        run = Run(rows=400)
        gate = BudgetGate(BudgetConfig(max_tokens_total=1000), MemoryBook(), clock=run.clock)
        error = run.go(run.route("a"), run.route("b", fallback=True), budget=gate)
        assert isinstance(error, LLMBudgetError)
        assert gate.balance.spent.tokens <= 1000


class TestEveryRow:
    @settings(max_examples=60)
    @given(data=st.data())
    def test_ends_exactly_once_or_is_pending(self, data):
        run = Run(rows=data.draw(st.integers(1, 40)), concurrency=data.draw(st.integers(1, 6)))
        kinds = st.sampled_from([WRONG_KEY, NO_CREDIT, DOWN, TOO_MANY, "ok", "ok", "ok"])
        routes = []
        for number in range(data.draw(st.integers(1, 3))):
            script = data.draw(st.lists(kinds, max_size=12))
            limits = data.draw(st.none() | st.just(RateLimits(requests_per_minute=600)))
            routes.append(
                run.route(
                    f"r{number}",
                    script,
                    limits=limits,
                    gates=(breaker(max_open=20.0),) if data.draw(st.booleans()) else (),
                    weight=data.draw(st.integers(1, 3)),
                    fallback=number > 0 and data.draw(st.booleans()),
                )
            )
        gate = BudgetGate(
            BudgetConfig(max_tokens_total=data.draw(st.integers(50, 4000))), MemoryBook(), clock=run.clock
        )
        error = run.go(*routes, budget=gate)
        indexes = [outcome.index for outcome in run.outcomes]
        assert len(indexes) == len(set(indexes))
        assert len(indexes) + run.report.pending == run.rows
        assert error is not None or len(indexes) == run.rows
        assert all(client.in_flight == 0 for client in run.clients.values())


class TestLongOutage:
    @pytest.mark.parametrize("concurrency", [1, 4])
    def test_uses_up_no_row_that_has_others_after_it(self, concurrency):
        run = Run(rows=80, concurrency=concurrency)
        down = run.route(
            "a",
            lambda _: DOWN if 1.0 <= run.clock.monotonic() < 120 else "ok",
            gates=(breaker(max_open=300.0),),
        )
        assert run.go(down) is None
        assert run.report.rows_by_status == {"success": 80}
        assert len(run.clients["a"].calls) <= 80 + 120 + 8

    @pytest.mark.parametrize("concurrency", [1, 2, 8])
    def test_rows_that_never_get_an_answer_end_alone(self, concurrency):
        run = Run(rows=60, concurrency=concurrency)
        poison = {7, 8, 9, 30, 58, 59}
        client = ScriptedClient(
            lambda call: CHOKES if call.body["messages"][0] in poison else "ok", latency=0.1, clock=run.clock
        )
        run.clients["a"] = client
        route = Route(client=client, name="a", gates=(breaker(max_open=300.0),))
        assert run.go(route) is None
        assert run.report.rows_by_status == {"success": 54, "error": 6}
        assert {outcome.index for outcome in run.outcomes if outcome.status == "error"} == poison
        assert len(client.calls) <= 54 + 6 * 10

    @pytest.mark.parametrize("last", [1, 3])
    def test_the_last_rows_wait_for_it_to_end(self, last):
        run = Run(rows=20, concurrency=2)
        down = run.route(
            "a",
            lambda call: (
                DOWN if call.body["messages"][0] >= 20 - last and run.clock.monotonic() < 120 else "ok"
            ),
            gates=(breaker(max_open=300.0),),
        )
        assert run.go(down) is None
        assert run.report.rows_by_status == {"success": 20}

    @pytest.mark.parametrize("last", [1, 3])
    def test_the_last_rows_are_pending_when_it_does_not_end(self, last):
        run = Run(rows=20, concurrency=2)
        down = run.route(
            "a",
            lambda call: DOWN if call.body["messages"][0] >= 20 - last else "ok",
            gates=(breaker(max_open=60.0),),
        )
        assert isinstance(run.go(down), LLMRetryableError)
        assert run.report.rows_by_status == {"success": 20 - last}
        assert run.report.pending == last
        assert len(run.clients["a"].calls) <= 20 + 60 + 8

    def test_a_row_that_cannot_even_be_sent_is_pending(self):
        run = Run(rows=1)
        nowhere = CallError(FailureKind.CONNECTION, "connect_failed", "refused")
        error = run.go(run.route("a", lambda _: nowhere, gates=(breaker(max_open=60.0),)))
        assert isinstance(error, LLMRetryableError)
        assert run.report.pending == 1

    def test_C13_the_attempts_at_a_lone_row_are_bounded(self):
        run = Run(rows=1)
        assert run.go(run.route("a", lambda _: DOWN, gates=(breaker(),))) is None
        assert len(run.clients["a"].calls) == 5
