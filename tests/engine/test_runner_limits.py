"""Waiting for the account's limits: never an attempt, never a hung run, and one refusal holds back everyone."""

from __future__ import annotations

import dataclasses

import pytest

from airflow_llm_provider.engine.call import CallError, FailureKind
from airflow_llm_provider.engine.events import Paused, Waiting, WaitReason
from airflow_llm_provider.engine.limiter import Cost, Unlimited
from airflow_llm_provider.engine.status import RowStatus
from airflow_llm_provider.errors import LLMRetryableError
from airflow_llm_provider.testing.scripted_client import Delayed, reply


def rate_limited(retry_after=None):
    return CallError(
        FailureKind.RATE_LIMITED, "http_429", "slow down", status_code=429, retry_after=retry_after
    )


def overloaded(retry_after=None):
    return CallError(FailureKind.OVERLOADED, "http_503", "busy", status_code=503, retry_after=retry_after)


class TestLimits:
    def test_C5_waiting_for_capacity_never_uses_an_attempt(self, rig, one_per_second):
        rig.build(concurrency=8, retry={"max_attempts": 1}, parts={"limiter": one_per_second})
        report = rig.run(200)
        assert report.rows_by_status == {"success": 200}
        assert {outcome.attempts for outcome in rig.outcomes} == {1}
        assert rig.clock.monotonic() == pytest.approx(199.1)

    def test_C5_each_request_sleeps_once(self, rig, one_per_second):
        rig.build(concurrency=8, parts={"limiter": one_per_second})
        rig.run(50)
        waits = [event for event in rig.observer.of(Waiting) if event.reason is WaitReason.LIMIT]
        assert len(waits) <= 50

    def test_C6_a_request_larger_than_the_limit_ends_as_a_row_and_the_others_finish(
        self, rig, one_per_second, make_requests
    ):
        rows = make_requests(3)
        rows[1] = type(rows[1])(
            index=1, body={"model": "m", "row": 1}, prompt_tokens=1400, max_output_tokens=100
        )
        rig.build(parts={"limiter": one_per_second})
        report = rig.run(rows)
        assert report.rows_by_status == {"success": 2, "request_too_large": 1}
        assert rig.statuses[1] is RowStatus.REQUEST_TOO_LARGE
        assert report.errors == {"request_exceeds_tpm": 1}
        assert report.requests == 2

    def test_C7_prompt_and_cap_are_reserved_and_real_usage_is_settled(self, rig, one_per_second):
        rig.build(
            ["a", rate_limited(1), CallError(FailureKind.TIMEOUT, "timeout", "x")],
            concurrency=1,
            parts={"limiter": one_per_second},
        )
        rig.run(2)
        reserved = Cost(tokens=50, output_cap=30)
        assert one_per_second.settled == [
            (reserved, Cost(tokens=15)),
            (reserved, Cost(tokens=0)),  # refused: no tokens were spent
            (reserved, reserved),  # unknown: as much as was reserved
            (reserved, Cost(tokens=15)),
        ]

    def test_retries_pay_too(self, rig, one_per_second):
        rig.build([overloaded()] * 3, concurrency=1, parts={"limiter": one_per_second})
        rig.run(1)
        assert len(one_per_second.settled) == 4

    def test_a_wait_too_long_to_hold_slots_for_ends_the_run_as_retryable(self, rig, one_per_second):
        one_per_second.next_free = 5000.0
        rig.build(parts={"limiter": one_per_second}, concurrency=2)
        with pytest.raises(LLMRetryableError, match="5000 s") as raised:
            rig.run(5, total=5)
        assert raised.value.retry_after == 5000
        assert rig.engine.report.pending == 5
        assert one_per_second.cancelled
        assert rig.client.calls == []

    @pytest.mark.parametrize("method", ["reserve", "settle"])
    def test_a_limiter_that_cannot_be_asked_ends_the_run_but_costs_no_answer(self, rig, method):
        class Lost(Unlimited):
            pass

        async def lost(*_):
            raise LLMRetryableError("Redis does not answer", retry_after=5)

        limiter = Lost(clock=rig.clock)
        setattr(limiter, method, lost)
        rig.build(parts={"limiter": limiter}, concurrency=3)
        with pytest.raises(LLMRetryableError, match="Redis"):
            rig.run(10, total=10)
        assert len(rig.outcomes) == len(rig.client.calls)
        assert rig.engine.report.pending == 10 - len(rig.outcomes)


class TestRateLimit:
    @pytest.mark.parametrize("retry_after", [None, 1.0, 10.0])
    def test_C8_one_refusal_pauses_everyone_and_all_rows_succeed(self, rig, retry_after):
        def respond(_call):
            now = rig.clock.monotonic()
            return rate_limited(retry_after) if now < 10 else "ok"

        rig.build(respond, concurrency=8, latency=0.05, retry={"max_attempts": 1})
        report = rig.run(50)
        assert report.rows_by_status == {"success": 50}
        refused = sum(call.started < 10 for call in rig.client.calls)
        episodes = len(rig.observer.of(Paused))
        assert refused <= 8 * max(episodes, 1)
        assert episodes <= 12
        assert rig.clock.monotonic() < 35

    def test_C8_nobody_sends_before_the_pause_is_over(self, rig):
        rig.build([rate_limited(20)], concurrency=8, latency=0.05)
        rig.run(50)
        later = [call.started for call in rig.client.calls[8:]]
        assert min(later) >= 20.05
        assert len({round(start, 6) for start in later[:8]}) > 4  # spread, not all at once

    def test_C8_many_refusals_of_one_burst_are_one_pause(self, rig):
        rig.build([rate_limited(5)] * 8, concurrency=8)
        rig.run(20)
        assert len(rig.observer.of(Paused)) == 1

    def test_a_wait_beyond_the_bound_hands_the_slots_back(self, rig):
        rig.build(["ok"] * 5 + [rate_limited(7200)], concurrency=1)
        with pytest.raises(LLMRetryableError, match="7200 s") as raised:
            rig.run(100, total=100)
        assert raised.value.retry_after == 7200
        assert len(rig.outcomes) == 5
        assert rig.engine.report.pending == 95
        assert rig.clock.monotonic() < 2

    def test_a_pause_beyond_the_bound_is_noticed_before_it_is_over_by_the_last_rows_too(self, rig):
        rig.build(then=rate_limited(250), concurrency=4, max_limit_wait=100.0)
        with pytest.raises(
            LLMRetryableError, match=r"hold back requests for 250 s.*than the 100 s"
        ) as raised:
            rig.run(4, total=4)
        assert raised.value.retry_after == 250
        assert rig.clock.monotonic() < 2
        assert (len(rig.client.calls), rig.engine.report.pending) == (4, 4)

    def test_a_pause_within_the_bound_is_waited_for(self, rig):
        rig.build([rate_limited(100)], concurrency=1, max_limit_wait=100.0)
        assert rig.run(1).rows_by_status == {"success": 1}

    def test_a_row_that_alone_is_refused_for_ever_ends_alone(self, rig):
        def respond(call):
            return rate_limited() if call.body["row"] == 3 else Delayed(answer="ok", seconds=5)

        rig.build(respond, concurrency=2, retry={"max_rate_limited": 5})
        report = rig.run(20)
        assert rig.statuses[3] is RowStatus.ERROR
        assert report.rows_by_status == {"success": 19, "error": 1}

    def test_when_nothing_gets_through_for_long_the_run_ends_as_retryable(self, rig):
        rig.build(then=rate_limited(), concurrency=4)
        with pytest.raises(LLMRetryableError, match="let none through"):
            rig.run(100, total=100)
        assert rig.engine.report.pending == 100
        assert rig.outcomes == []


class TestSentAgain:
    def test_what_a_client_sends_again_is_taken_of_the_limit_and_counted(self, rig, one_per_second):
        refused = CallError(FailureKind.ROW, "http_400", "no", status_code=400)
        refused.requests = 2
        twice = dataclasses.replace(reply("ok"), requests=2)
        rig.build([twice, refused], concurrency=1, parts={"limiter": one_per_second})
        report = rig.run(3)
        assert [used.requests for _, used in one_per_second.settled] == [2, 2, 1]
        assert (report.requests, report.retries) == (5, 2)
