"""Retry decisions are pure, bounded, and never come back sooner than asked."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llm_provider.engine.call import CallError, FailureKind
from airflow_llm_provider.engine.retry import GiveUp, Retry, RetryConfig, RetryPolicy, StopRun, Tries
from airflow_llm_provider.errors import LLMInputError


def error(kind=FailureKind.OVERLOADED, retry_after=None):
    return CallError(kind, "http_503", "busy", retry_after=retry_after)


def decide(failure, *, tries, now=0.0, last_success=-math.inf, seed=0, **config):
    policy = RetryPolicy(RetryConfig(**config), random.Random(seed))
    return policy.on_error(failure, tries, now=now, last_success=last_success)


class TestRetryConfig:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("max_attempts", 0),
            ("max_attempts", 2.5),
            ("max_attempts", True),
            ("max_output_attempts", 0),
            ("initial_backoff", -1),
            ("max_backoff", math.inf),
            ("max_retry_after", math.nan),
            ("max_rate_limited_seconds", "3"),
        ],
    )
    def test_a_value_outside_its_bounds_is_named_with_the_bound(self, name, value):
        with pytest.raises(LLMInputError, match=rf"RetryConfig\.{name} is .*at least"):
            RetryConfig(**{name: value})

    def test_bounds_that_contradict_each_other_are_refused(self):
        with pytest.raises(LLMInputError, match="raise it"):
            RetryConfig(initial_backoff=10, max_backoff=5)

    def test_the_backoff_bound_doubles_up_to_its_maximum(self):
        config = RetryConfig(initial_backoff=1, max_backoff=10)
        assert [config.backoff_bound(n) for n in (1, 2, 3, 4, 5, 10_000)] == [1, 2, 4, 8, 10, 10]


class TestRetryPolicy:
    def test_C13_a_row_ends_after_max_attempts(self):
        assert isinstance(decide(error(), tries=Tries(failures=1), max_attempts=2), Retry)
        assert decide(error(), tries=Tries(failures=2), max_attempts=2) == GiveUp()

    @given(
        asked=st.floats(0, 300),
        failures=st.integers(1, 4),
        kind=st.sampled_from([FailureKind.OVERLOADED, FailureKind.RATE_LIMITED]),
        seed=st.integers(0, 99),
    )
    def test_the_wait_is_never_shorter_than_asked_and_only_a_little_longer(self, asked, failures, kind, seed):
        tries = Tries(failures=failures, rate_limited=failures)
        decision = decide(error(kind, asked), tries=tries, seed=seed)
        assert asked <= decision.wait <= asked + 1.0

    @given(failures=st.integers(1, 50), seed=st.integers(0, 99))
    def test_without_being_asked_the_wait_stays_below_its_bound(self, failures, seed):
        decision = decide(error(), tries=Tries(failures=failures), max_attempts=100, seed=seed)
        assert 0 <= decision.wait <= min(60, 2 ** (failures - 1))

    @pytest.mark.parametrize("nonsense", [math.nan, math.inf, -5.0])
    def test_a_nonsensical_wish_is_no_wish(self, nonsense):
        assert decide(error(retry_after=nonsense), tries=Tries(failures=1)).wait <= 1.0

    @pytest.mark.parametrize("kind", [FailureKind.RATE_LIMITED, FailureKind.OVERLOADED])
    def test_a_wait_beyond_the_bound_stops_the_run_and_says_until_when(self, kind):
        decision = decide(error(kind, 3600.0), tries=Tries(failures=1, rate_limited=1))
        assert isinstance(decision, StopRun)
        assert decision.retry_after == 3600
        assert "3600 s" in decision.reason

    def test_C8_refusals_for_the_rate_have_their_own_generous_allowance(self):
        tries = Tries(failures=4, rate_limited=99, rate_limited_since=0.0)
        assert isinstance(decide(error(FailureKind.RATE_LIMITED), tries=tries, now=1000), Retry)

    @pytest.mark.parametrize(("count", "now"), [(100, 5.0), (3, 1800.0)])
    def test_when_nothing_gets_through_for_long_the_run_stops_and_rows_stay_pending(self, count, now):
        tries = Tries(rate_limited=count, rate_limited_since=0.0)
        decision = decide(error(FailureKind.RATE_LIMITED), tries=tries, now=now)
        assert isinstance(decision, StopRun)
        assert decision.retry_after == 60

    def test_when_others_get_through_only_the_row_ends(self):
        tries = Tries(rate_limited=100, rate_limited_since=10.0)
        decision = decide(error(FailureKind.RATE_LIMITED), tries=tries, now=50.0, last_success=40.0)
        assert decision == GiveUp()

    def test_E11_an_unusable_answer_is_asked_again_up_to_its_own_bound(self):
        policy = RetryPolicy(RetryConfig(max_output_attempts=3), random.Random(0))
        assert policy.on_output(Tries(outputs=2)) == Retry(wait=0.0)
        assert policy.on_output(Tries(outputs=3)) == GiveUp()


class TestTries:
    def test_refusals_for_the_rate_are_counted_apart_and_timed_from_the_first(self):
        tries = Tries()
        tries.count(error(FailureKind.RATE_LIMITED), now=7.0)
        tries.count(error(FailureKind.TIMEOUT), now=8.0)
        tries.count(error(FailureKind.RATE_LIMITED), now=9.0)
        assert (tries.rate_limited, tries.rate_limited_since, tries.failures) == (2, 7.0, 1)
