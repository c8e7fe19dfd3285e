"""One pause an episode, however many refusals arrive."""

from __future__ import annotations

import random

from airflow_llm_provider.engine.call import CallError, FailureKind
from airflow_llm_provider.engine.cooldown import Cooldown
from airflow_llm_provider.engine.retry import RetryConfig


def refused(retry_after=None):
    return CallError(FailureKind.RATE_LIMITED, "http_429", "slow down", retry_after=retry_after)


def cooldown(**config):
    return Cooldown(RetryConfig(**config), random.Random(0))


class TestCooldown:
    def test_C8_the_first_refusal_pauses_for_as_long_as_asked(self):
        assert cooldown().on_rate_limited(refused(7.0), sent_at=0.0, now=1.0) == 7.0

    def test_C8_requests_that_were_already_out_do_not_pause_again(self):
        policy = cooldown()
        policy.on_rate_limited(refused(7.0), sent_at=0.0, now=1.0)
        assert policy.on_rate_limited(refused(7.0), sent_at=0.5, now=1.2) == 0.0
        assert policy.on_rate_limited(refused(), sent_at=1.0, now=1.2) == 0.0

    def test_a_longer_wish_of_the_same_episode_is_honoured(self):
        policy = cooldown()
        policy.on_rate_limited(refused(1.0), sent_at=0.0, now=1.0)
        assert policy.on_rate_limited(refused(30.0), sent_at=0.5, now=1.2) == 30.0

    def test_refusals_that_come_together_are_one_episode(self):
        policy = cooldown()
        pauses = [policy.on_rate_limited(refused(2.0), sent_at=0.0, now=0.0) for _ in range(5)]
        assert pauses == [2.0, 0.0, 0.0, 0.0, 0.0]

    def test_without_a_wish_the_pause_grows_by_episode_and_is_never_tiny(self):
        policy = cooldown(initial_backoff=1, max_backoff=8)
        pauses = [
            policy.on_rate_limited(refused(), sent_at=now - 0.1, now=now)
            for now in (1.0, 10.0, 20.0, 30.0, 40.0, 50.0)
        ]
        for pause, bound in zip(pauses, (1, 2, 4, 8, 8, 8), strict=True):
            assert bound / 2 <= pause <= bound

    def test_a_success_after_the_pause_ends_the_growth(self):
        policy = cooldown(initial_backoff=1)
        for now in (1.0, 10.0, 20.0):
            policy.on_rate_limited(refused(), sent_at=now - 0.1, now=now)
        policy.on_success(sent_at=19.0)  # sent before the last pause: says nothing about it
        assert policy.on_rate_limited(refused(), sent_at=29.9, now=30.0) > 1
        policy.on_success(sent_at=35.0)
        assert policy.on_rate_limited(refused(), sent_at=39.9, now=40.0) <= 1
