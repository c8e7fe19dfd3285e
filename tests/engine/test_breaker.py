import math

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from airflow_llm_provider.engine.breaker import Breaker, BreakerConfig, BreakerGate
from airflow_llm_provider.engine.call import FailureKind, Request
from airflow_llm_provider.engine.circuit_state import CircuitState
from airflow_llm_provider.engine.events import AttemptFinished
from airflow_llm_provider.engine.gate import PASS
from airflow_llm_provider.engine.verdict import Verdict
from airflow_llm_provider.errors import LLMInputError, LLMRetryableError

SUCCESS, IGNORED, DROPPED = Verdict.SUCCESS, Verdict.IGNORED, Verdict.DROPPED


def opened(now=0.0, **config):
    breaker = Breaker(BreakerConfig(**config))
    for _ in range(breaker.config.consecutive_failures):
        breaker.record(DROPPED, round_=0, now=now)
    assert breaker.state is CircuitState.OPEN
    return breaker


class TestClosed:
    def test_lets_everything_pass(self):
        assert Breaker().admit(1.0) == 0

    def test_opens_after_failures_in_a_row_however_slow(self):
        breaker = Breaker(BreakerConfig(consecutive_failures=3))
        for now in (0, 100, 200):
            assert breaker.state is CircuitState.CLOSED
            breaker.record(DROPPED, round_=0, now=now)
        assert breaker.state is CircuitState.OPEN

    def test_opens_at_the_failure_ratio(self):
        breaker = Breaker(BreakerConfig(failure_ratio=0.5, minimum_throughput=10, consecutive_failures=9))
        for index in range(10):
            assert breaker.state is CircuitState.CLOSED
            breaker.record(DROPPED if index % 2 else SUCCESS, round_=0, now=index / 10)
        assert breaker.state is CircuitState.OPEN

    def test_does_not_open_below_the_minimum_throughput(self):
        breaker = Breaker(BreakerConfig(failure_ratio=0.5, minimum_throughput=11, consecutive_failures=9))
        for index in range(10):
            breaker.record(DROPPED if index % 2 else SUCCESS, round_=0, now=index / 10)
        assert breaker.state is CircuitState.CLOSED

    def test_forgets_what_is_older_than_the_sampling_duration(self):
        breaker = Breaker(
            BreakerConfig(
                failure_ratio=0.5, minimum_throughput=4, sampling_duration=10, consecutive_failures=9
            )
        )
        for now in (0, 1, 2):
            breaker.record(DROPPED, round_=0, now=now)
        for now in (20, 21, 22):
            breaker.record(SUCCESS, round_=0, now=now)
        breaker.record(DROPPED, round_=0, now=23)
        assert breaker.state is CircuitState.CLOSED

    def test_C11_ignores_what_says_nothing_about_the_endpoint(self):
        breaker = Breaker(BreakerConfig(consecutive_failures=2))
        breaker.record(DROPPED, round_=0, now=0)
        for _ in range(100):
            breaker.record(IGNORED, round_=0, now=0)
        assert breaker.state is CircuitState.CLOSED
        breaker.record(DROPPED, round_=0, now=0)
        assert breaker.state is CircuitState.OPEN


class TestOpen:
    def test_holds_back_until_the_break_is_over(self):
        breaker = opened(now=5.0, break_duration=2.0)
        assert breaker.admit(6.0) == pytest.approx(1.0)
        assert breaker.admit(7.0) == 0
        assert breaker.state is CircuitState.HALF_OPEN

    def test_does_not_hear_verdicts_on_what_was_sent_before(self):
        breaker = opened(break_duration=2.0)
        breaker.record(SUCCESS, round_=0, now=1.0)
        breaker.record(DROPPED, round_=0, now=1.9)
        assert breaker.state is CircuitState.OPEN
        assert breaker.admit(2.0) == 0


class TestHalfOpen:
    def test_lets_exactly_one_probe_pass(self):
        breaker = opened(break_duration=1.0)
        assert [breaker.admit(1.0) == 0 for _ in range(50)].count(True) == 1

    def test_closes_on_success(self):
        breaker = opened(break_duration=1.0)
        breaker.admit(1.0)
        breaker.record(SUCCESS, round_=breaker.round, now=1.1)
        assert breaker.state is CircuitState.CLOSED
        assert breaker.open_for(9.0) == 0

    def test_opens_again_on_a_drop_and_counts_from_the_first_opening(self):
        breaker = opened(break_duration=1.0)
        breaker.admit(1.0)
        breaker.record(DROPPED, round_=breaker.round, now=1.5)
        assert breaker.admit(2.0) == pytest.approx(0.5)
        assert breaker.open_for(2.0) == 2.0

    def test_an_undecided_probe_leaves_its_turn_to_another(self):
        breaker = opened(break_duration=1.0)
        breaker.admit(1.0)
        breaker.record(IGNORED, round_=breaker.round, now=1.1)
        assert breaker.admit(1.2) == 0

    def test_late_verdicts_of_earlier_rounds_decide_nothing(self):
        breaker = opened(break_duration=1.0)
        breaker.admit(1.0)
        breaker.record(SUCCESS, round_=0, now=1.1)
        assert breaker.state is CircuitState.HALF_OPEN


LEGAL = {
    (CircuitState.CLOSED, CircuitState.OPEN),
    (CircuitState.OPEN, CircuitState.HALF_OPEN),
    (CircuitState.HALF_OPEN, CircuitState.OPEN),
    (CircuitState.HALF_OPEN, CircuitState.CLOSED),
}


class LegalTransitions(RuleBasedStateMachine):
    """Whatever happens, only the transitions of the book happen, and never two probes at a time."""

    def __init__(self):
        super().__init__()
        self.breaker = Breaker(BreakerConfig(minimum_throughput=5, consecutive_failures=3))
        self.now, self.last, self.out, self.probes = 0.0, CircuitState.CLOSED, [], 0

    @rule(seconds=st.floats(0, 3))
    def wait(self, seconds):
        self.now += seconds

    @rule()
    def admit(self):
        before = self.breaker.state
        wait = self.breaker.admit(self.now)
        if wait == 0:
            assert before is not CircuitState.OPEN or self.breaker.state is CircuitState.HALF_OPEN
            self.out.append(self.breaker.round)
        else:
            assert before is not CircuitState.CLOSED
            assert 0 < wait < math.inf

    @precondition(lambda self: self.out)
    @rule(data=st.data(), verdict=st.sampled_from(list(Verdict)))
    def record(self, data, verdict):
        round_ = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
        self.breaker.record(verdict, round_=round_, now=self.now)

    @invariant()
    def legal(self):
        state = self.breaker.state
        assert state is self.last or (self.last, state) in LEGAL
        self.last = state
        if state is CircuitState.HALF_OPEN:
            assert self.out.count(self.breaker.round) <= 1


TestLegalTransitions = LegalTransitions.TestCase
TestLegalTransitions.settings = settings(max_examples=60, stateful_step_count=60)


def request(index=0):
    return Request(index=index, body={}, prompt_tokens=1, max_output_tokens=1)


def finished(verdict, kind=None, index=0, message=None):
    return AttemptFinished(index=index, attempt=1, verdict=verdict, kind=kind, message=message)


class TestGate:
    def fail(self, gate, count, *, now=0.0, kind=FailureKind.OVERLOADED):
        for index in range(count):
            assert gate.admit(request(index), now=now) == PASS
        for index in range(count):
            gate.settle(request(index), finished(DROPPED, kind, index), now=now)

    def test_C10_a_dead_endpoint_gets_few_requests_and_then_ends_the_run_as_retryable(self):
        gate, sent, now = BreakerGate(Breaker(BreakerConfig(max_open=20.0))), 0, 0.0
        stopped = None
        while stopped is None:
            in_flight = []
            for index in range(16):
                passage = gate.admit(request(index), now=now)
                stopped = stopped or passage.stop
                if passage == PASS:
                    in_flight.append(index)
            now += 0.01
            for index in in_flight:
                gate.settle(request(index), finished(DROPPED, FailureKind.OVERLOADED), now=now)
            sent += len(in_flight)
            now += 0.09
        assert isinstance(stopped, LLMRetryableError)
        assert stopped.retry_after == 20.0
        assert sent <= 16 + 20

    def test_says_what_the_last_dropped_request_met(self):
        gate = BreakerGate(Breaker(BreakerConfig(max_open=20.0, consecutive_failures=1)))
        for now, message in ((0.0, "HTTP 503"), (2.0, "cannot connect to here:80: gaierror")):
            assert gate.admit(request(), now=now) == PASS
            gate.settle(request(), finished(DROPPED, FailureKind.CONNECTION, message=message), now=now)
        stop = gate.admit(request(), now=21.0).stop
        assert "(20 s); the last time: cannot connect to here:80: gaierror. Run again" in str(stop)

    def test_a_refusal_for_the_rate_or_for_a_rows_content_does_not_open_it(self):
        gate = BreakerGate()
        self.fail(gate, 30, kind=FailureKind.RATE_LIMITED)
        self.fail(gate, 30, kind=FailureKind.ROW)
        assert gate.breaker.state is CircuitState.CLOSED

    @pytest.mark.parametrize("kind", [FailureKind.ROW, FailureKind.RATE_LIMITED])
    def test_it_is_enough_of_an_answer_to_a_probe(self, kind):
        gate = BreakerGate()
        self.fail(gate, 4)
        assert gate.admit(request(), now=2.0) == PASS
        gate.settle(request(), finished(IGNORED, kind), now=2.1)
        assert gate.breaker.state is CircuitState.CLOSED

    def test_a_probe_that_was_not_sent_leaves_its_turn_to_another(self):
        gate = BreakerGate()
        self.fail(gate, 4)
        assert gate.admit(request(1), now=2.0) == PASS
        assert gate.admit(request(2), now=2.0).wait > 0
        gate.withdraw(request(1), now=2.1)
        assert gate.admit(request(2), now=2.2) == PASS


class TestConfig:
    @pytest.mark.parametrize(
        "fields",
        [
            {"failure_ratio": 0},
            {"failure_ratio": 1.5},
            {"minimum_throughput": 0},
            {"consecutive_failures": 1.0},
            {"sampling_duration": 0},
            {"break_duration": None},
            {"break_duration": math.inf},
            {"max_open": -1},
        ],
    )
    def test_refuses_what_makes_no_sense(self, fields):
        with pytest.raises(LLMInputError, match=f"BreakerConfig.{next(iter(fields))} is"):
            BreakerConfig(**fields)

    def test_may_never_give_up(self):
        gate = BreakerGate(Breaker(BreakerConfig(max_open=None)))
        for index in range(4):
            gate.admit(request(index), now=0)
            gate.settle(request(index), finished(DROPPED, FailureKind.TIMEOUT), now=0)
        assert gate.admit(request(), now=1e9) == PASS
