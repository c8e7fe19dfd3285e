"""The engine with limiter, breaker, adaptive concurrency and budget at once, in virtual time."""

import asyncio
from collections import deque

import pytest

from airflow_llm_provider.engine.adaptive import AdaptiveConfig, AdaptiveGate
from airflow_llm_provider.engine.breaker import Breaker, BreakerConfig, BreakerGate
from airflow_llm_provider.engine.budget.config import BudgetConfig
from airflow_llm_provider.engine.budget.gate import BudgetGate
from airflow_llm_provider.engine.budget.memory_book import MemoryBook
from airflow_llm_provider.engine.budget.spent import Spent
from airflow_llm_provider.engine.call import CallError, FailureKind, Judgement, Reply, Request
from airflow_llm_provider.engine.config import EngineConfig
from airflow_llm_provider.engine.limiter import Unlimited
from airflow_llm_provider.engine.limits.account import AccountLimiter
from airflow_llm_provider.engine.limits.rate_limits import RateLimits
from airflow_llm_provider.engine.runner import Engine
from airflow_llm_provider.engine.status import RowStatus
from airflow_llm_provider.engine.usage import Usage
from airflow_llm_provider.errors import LLMBudgetError, LLMError, LLMRetryableError
from airflow_llm_provider.testing.clock import ManualClock
from airflow_llm_provider.testing.scripted_client import Delayed, ScriptedClient

CONCURRENCY = 64


def requests(count):
    return (
        Request(index=index, body={"model": "m"}, prompt_tokens=20, max_output_tokens=80)
        for index in range(count)
    )


class Endpoint:
    """Answers by its state at the time of a call, and remembers what it did when."""

    def __init__(self, clock, *, answer=0.05, refusal=0.004):
        self.clock, self.answer, self.refusal = clock, answer, refusal
        self.client = ScriptedClient(self.respond, clock=clock)
        self.dropped, self.refused = [], []
        self.recent = deque()

    def respond(self, call):
        raise NotImplementedError

    def accept(self):
        usage = Usage(prompt_tokens=20, completion_tokens=10)
        return Delayed(answer=Reply(text="ok", usage=usage, model="m"), seconds=self.answer)

    def drop(self, kind=FailureKind.OVERLOADED, code="http_503", **more):
        (self.refused if kind is FailureKind.RATE_LIMITED else self.dropped).append(self.clock.monotonic())
        return Delayed(answer=CallError(kind, code, "no", **more), seconds=self.refusal)


class HundredASecond(Endpoint):
    def respond(self, call):
        now = self.clock.monotonic()
        while self.recent and self.recent[0] <= now - 1.0:
            self.recent.popleft()
        if len(self.recent) >= 100:
            return self.drop(FailureKind.RATE_LIMITED, "http_429", retry_after=1.0)
        self.recent.append(now)
        return self.accept()


class Outage(Endpoint):
    """Answers 503 from ``begin`` to ``end``."""

    def __init__(self, clock, *, begin, end, **options):
        super().__init__(clock, **options)
        self.begin, self.end = begin, end

    def respond(self, call):
        return self.drop() if self.begin <= self.clock.monotonic() < self.end else self.accept()


def run(endpoint, rows, *, limits=None, gates=(), budget=None, limiter=None, concurrency=CONCURRENCY):
    clock, outcomes = endpoint.clock, []
    engine = Engine(
        endpoint.client,
        lambda reply: Judgement(status=RowStatus.SUCCESS, answer=reply.text),
        config=EngineConfig(concurrency=concurrency),
        clock=clock,
        limiter=limiter or AccountLimiter(limits=limits, clock=clock),
        gates=gates,
        budget=budget,
    )

    async def send():
        if budget is not None:
            await budget.open(Spent)
        await engine.run(requests(rows), outcomes.append, total=rows)

    try:
        asyncio.run(send())
    except LLMError as error:
        return outcomes, error
    return outcomes, None


def all_gates():
    return [BreakerGate(), AdaptiveGate(AdaptiveConfig(ceiling=CONCURRENCY))]


@pytest.fixture
def clock():
    return ManualClock()


class TestUnknownRate:
    @pytest.mark.parametrize("gated", [False, True])
    def test_a_thousand_rows_at_a_hundred_a_second(self, clock, gated):
        endpoint = HundredASecond(clock)
        outcomes, error = run(endpoint, 1000, gates=all_gates() if gated else ())
        assert error is None
        assert [outcome.status for outcome in outcomes] == [RowStatus.SUCCESS] * 1000
        assert clock.monotonic() <= 11
        assert len(endpoint.refused) <= 13


class TestOutage:
    def test_twenty_seconds_lose_no_row_and_waste_few_calls(self, clock):
        endpoint = Outage(clock, begin=2.0, end=22.0, answer=0.25)
        outcomes, error = run(endpoint, 1000, gates=all_gates())
        assert error is None
        assert {outcome.status for outcome in outcomes} == {RowStatus.SUCCESS}
        assert len(endpoint.dropped) <= 100
        first_full = next(
            call.started
            for call in endpoint.client.calls
            if call.started >= 22.0
            and sum(
                other.started <= call.started < other.ended
                for other in endpoint.client.calls
                if other.started >= 21.0
            )
            >= 0.9 * CONCURRENCY
        )
        assert first_full <= 23.3

    def test_C10_one_that_does_not_end_stops_the_run_as_retryable_with_its_rows_pending(self, clock):
        endpoint = Outage(clock, begin=0.0, end=1e9)
        gates = [BreakerGate(Breaker(BreakerConfig(max_open=10.0)))]
        outcomes, error = run(endpoint, 500, gates=gates, concurrency=16)
        assert isinstance(error, LLMRetryableError)
        assert outcomes == []
        assert len(endpoint.dropped) <= 16 + 4 + 10


class TestKnownLimits:
    def test_C5_waiting_for_capacity_is_no_attempt(self, clock):
        endpoint = Endpoint(clock)
        endpoint.respond = lambda call: endpoint.accept()
        endpoint.client = ScriptedClient(endpoint.respond, clock=clock)
        outcomes, error = run(endpoint, 200, limits=RateLimits(requests_per_minute=60), concurrency=16)
        assert error is None
        assert {outcome.attempts for outcome in outcomes} == {1}
        assert 195 <= clock.monotonic() <= 205

    def test_C6_a_row_larger_than_the_limit_ends_alone(self, clock):
        endpoint = Endpoint(clock)
        endpoint.client = ScriptedClient(lambda call: endpoint.accept(), clock=clock)
        outcomes, error = run(endpoint, 3, limits=RateLimits(tokens_per_minute=10))
        assert error is None
        assert {outcome.status for outcome in outcomes} == {RowStatus.REQUEST_TOO_LARGE}
        assert endpoint.client.calls == []


class TestBudget:
    def test_I7_stops_before_exceeding_and_keeps_what_is_paid(self, clock):
        endpoint = Endpoint(clock)
        endpoint.client = ScriptedClient(lambda call: endpoint.accept(), clock=clock)
        gate = BudgetGate(BudgetConfig(max_tokens_total=1000), MemoryBook(), clock=clock)
        outcomes, error = run(endpoint, 100, budget=gate, concurrency=16)
        assert isinstance(error, LLMBudgetError)
        assert gate.balance.spent.tokens == 30 * len(outcomes)
        assert 900 <= gate.balance.spent.tokens <= 1000
        assert {outcome.status for outcome in outcomes} == {RowStatus.SUCCESS}

    @pytest.mark.parametrize("make", [AccountLimiter, Unlimited])
    def test_a_pause_that_begins_while_the_book_is_waited_for_holds_back(self, clock, make):
        limiter, sent_at = make(clock=clock), []

        class SlowBook(MemoryBook):
            async def state(self, holder, statement, *, limit):
                if not sent_at and clock.monotonic() < 1.0:
                    await limiter.pause(30.0)
                    await clock.sleep(1.0)
                return await super().state(holder, statement, limit=limit)

        endpoint = Endpoint(clock)

        def respond(call):
            sent_at.append(clock.monotonic())
            return endpoint.accept()

        endpoint.client = ScriptedClient(respond, clock=clock)
        gate = BudgetGate(BudgetConfig(max_tokens_total=1000), SlowBook(), clock=clock)
        outcomes, error = run(endpoint, 3, budget=gate, limiter=limiter, concurrency=3)
        assert error is None
        assert len(outcomes) == 3
        assert min(sent_at) >= 30.0
        assert gate.balance.spent.tokens == 90
