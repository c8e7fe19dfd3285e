"""What endpoints do to us, and that rows, runs and accounts survive it."""

from __future__ import annotations

import asyncio

import pytest

from airflow_llm_provider.engine.call import TERMINAL_KINDS, CallError, FailureKind
from airflow_llm_provider.engine.events import Stopping
from airflow_llm_provider.engine.limiter import AccountHaltedError
from airflow_llm_provider.engine.status import RowStatus
from airflow_llm_provider.errors import (
    LLMAuthenticationError,
    LLMConfigurationError,
    LLMQuotaError,
    LLMTerminalError,
)
from airflow_llm_provider.testing.scripted_client import Delayed


def rate_limited(retry_after=None):
    return CallError(
        FailureKind.RATE_LIMITED, "http_429", "slow down", status_code=429, retry_after=retry_after
    )


def overloaded(retry_after=None):
    return CallError(FailureKind.OVERLOADED, "http_503", "busy", status_code=503, retry_after=retry_after)


class TestRetries:
    def test_C13_attempts_times_rows_is_all_that_a_dead_server_sees(self, rig):
        rig.build(then=Delayed(answer="never", seconds=float("inf")), timeout=1, retry={"max_attempts": 2})
        report = rig.run(1)
        assert report.requests == 2
        assert rig.outcomes[0].status is RowStatus.ERROR
        assert rig.outcomes[0].code == "timeout"
        assert rig.clock.monotonic() <= 2 + 1

    @pytest.mark.parametrize("code", ["html", "error_object", "no_choices", "cut_json"])
    def test_C14_a_bad_response_is_tried_again(self, rig, code):
        bad = CallError(FailureKind.BAD_RESPONSE, code, "HTTP 200 without a completion", status_code=200)
        rig.build([bad, bad])
        report = rig.run(5)
        assert report.rows_by_status == {"success": 5}
        assert report.failed_requests == {code: 2}

    def test_C14_a_row_that_only_gets_bad_responses_ends_alone(self, rig):
        bad = CallError(FailureKind.BAD_RESPONSE, "html", "HTTP 200 without a completion", status_code=200)
        rig.build(lambda call: bad if call.body["row"] == 2 else "ok")
        report = rig.run(5)
        assert rig.statuses[2] is RowStatus.ERROR
        assert report.rows_by_status == {"success": 4, "error": 1}
        assert report.requests == 4 + 5

    @pytest.mark.parametrize("retry_after", [0.0, 3.0, 20.0])
    def test_a_wish_to_wait_is_honoured_in_full(self, rig, retry_after):
        rig.build([overloaded(retry_after)], latency=0)
        rig.run(1)
        first, second = rig.client.calls
        assert second.started - first.ended >= retry_after

    def test_a_client_that_cancels_its_own_call_is_a_lost_connection(self, rig):
        class Nervous:
            calls = 0

            async def complete(self, body, *, timeout):
                Nervous.calls += 1
                if Nervous.calls == 1:
                    raise asyncio.CancelledError
                return await rig.client.complete(body, timeout=timeout)

        rig.build(parts={"client": Nervous()})
        report = rig.run(3)
        assert report.rows_by_status == {"success": 3}
        assert report.failed_requests == {"cancelled": 1}


class TestRowFailures:
    @pytest.mark.parametrize(
        ("code", "status"),
        [
            ("context_length_exceeded", RowStatus.CONTEXT_TOO_LONG),  # C16
            ("content_filter", RowStatus.CONTENT_FILTER),  # C15
            ("invalid_request", RowStatus.REJECTED),  # B9
        ],
    )
    def test_C15_C16_B9_one_bad_row_ends_alone_and_is_asked_once(self, rig, code, status):
        bad = CallError(FailureKind.ROW, code, "HTTP 400", row_status=status, status_code=400)
        rig.build(lambda call: bad if call.body["row"] == 3 else "ok")
        report = rig.run(5)
        assert rig.statuses[3] is status
        assert report.rows_by_status == {"success": 4, status.value: 1}
        assert report.errors == {code: 1}
        assert report.requests == 5


class TestTerminalFailures:
    @pytest.mark.parametrize(
        ("kind", "code", "raised"),
        [
            (FailureKind.AUTHENTICATION, "invalid_api_key", LLMAuthenticationError),  # B9
            (FailureKind.QUOTA, "insufficient_quota", LLMQuotaError),  # C1
            (FailureKind.CONFIGURATION, "unsupported_value", LLMConfigurationError),  # C18
        ],
    )
    def test_B9_C1_C18_what_every_row_would_meet_stops_the_run_after_one_request(
        self, rig, one_per_second, kind, code, raised
    ):
        rig.build(
            then=CallError(kind, code, "No.", status_code=400),
            concurrency=16,
            probe_window=0.25,
            parts={"limiter": one_per_second},
        )
        with pytest.raises(raised, match=code):
            rig.run(1000, total=1000)
        assert len(rig.client.calls) == 1
        assert rig.outcomes == []
        assert rig.engine.report.pending == 1000
        assert one_per_second.halted == [kind]
        assert rig.leftover_tasks == set()

    @pytest.mark.parametrize(
        ("kind", "code", "own"),
        [
            (FailureKind.CONFIGURATION, "unknown_parameter", True),
            (FailureKind.CONFIGURATION, "model_not_found", False),
            (FailureKind.QUOTA, "insufficient_quota", False),
            (FailureKind.AUTHENTICATION, "invalid_api_key", False),
        ],
    )
    def test_a_refused_parameter_concerns_only_those_who_send_it(self, rig, one_per_second, kind, code, own):
        rig.build(then=CallError(kind, code, "No.", status_code=400), parts={"limiter": one_per_second})
        with pytest.raises(LLMTerminalError):
            rig.run(1)
        assert one_per_second.own is own

    @pytest.mark.parametrize("kind", sorted(TERMINAL_KINDS))
    def test_in_the_middle_answers_in_flight_are_kept_and_nothing_new_goes_out(self, rig, kind):
        def respond(call):
            if call.number == 20:
                return CallError(kind, "stop", "No.")
            return Delayed(answer="ok", seconds=1 + call.number / 10)

        rig.build(respond, concurrency=4, drain_grace=60)
        with pytest.raises(LLMTerminalError):
            rig.run(1000, total=1000)
        stopped_at = rig.client.calls[20].ended
        assert max(call.started for call in rig.client.calls) <= stopped_at
        assert len(rig.outcomes) == len(rig.client.calls) - 1
        assert rig.engine.report.pending == 1000 - len(rig.outcomes)
        assert len(rig.observer.of(Stopping)) == 1

    @pytest.mark.parametrize("method", ["reserve", "recheck"])
    def test_C1_when_another_task_has_found_out_nothing_is_sent(self, rig, one_per_second, method):
        async def halted(*_):
            raise AccountHaltedError(FailureKind.QUOTA)

        one_per_second.next_free = 5.0
        setattr(one_per_second, method, halted)
        rig.build(parts={"limiter": one_per_second})
        with pytest.raises(LLMQuotaError, match="another task"):
            rig.run(10, total=10)
        assert rig.client.calls == []
        assert rig.engine.report.pending == 10

    def test_a_request_whose_wait_ends_at_that_very_moment_is_not_sent(self, rig, one_per_second):
        rig.build(
            then=CallError(FailureKind.QUOTA, "q", "No."),
            concurrency=2,
            latency=1,
            parts={"limiter": one_per_second},
        )
        with pytest.raises(LLMQuotaError):
            rig.run(10)
        assert len(rig.client.calls) == 1
        assert len(one_per_second.cancelled) == 1

    def test_answers_that_do_not_arrive_within_the_grace_are_left(self, rig):
        def respond(call):
            if call.number == 0:
                return Delayed(answer=CallError(FailureKind.QUOTA, "q", "No."), seconds=1)
            return Delayed(answer="late", seconds=100)

        rig.build(respond, concurrency=4, drain_grace=5)
        with pytest.raises(LLMQuotaError):
            rig.run(10)
        assert rig.outcomes == []
        assert rig.clock.monotonic() == pytest.approx(6)
        assert sum(call.cancelled for call in rig.client.calls) == 3

    def test_rows_in_backoff_are_left_pending_at_once(self, rig):
        def respond(call):
            if call.body["row"] == 0:
                return overloaded(200)
            return Delayed(answer=CallError(FailureKind.QUOTA, "q", "No."), seconds=1)

        rig.build(respond, concurrency=2)
        with pytest.raises(LLMQuotaError):
            rig.run(10, total=10)
        assert rig.clock.monotonic() == pytest.approx(1)
        assert rig.engine.report.pending == 10

    def test_a_row_that_would_be_asked_again_keeps_the_answer_that_is_paid_for(self, rig):
        def respond(call):
            if call.number == 0:
                return CallError(FailureKind.QUOTA, "q", "No.")
            return Delayed(answer="bad", seconds=1)

        rig.build(respond, concurrency=2)
        with pytest.raises(LLMQuotaError):
            rig.run(2, total=2)
        (outcome,) = rig.outcomes
        assert (outcome.status, outcome.text, outcome.usage.total_tokens) == (
            RowStatus.INVALID_OUTPUT,
            "bad",
            15,
        )
        assert rig.engine.report.usage.total_tokens == 15
        assert rig.engine.report.pending == 1

    def test_a_source_that_fails_stops_the_run_and_answers_in_flight_are_kept(self, rig, make_requests):
        def source():
            yield from make_requests(6)
            raise OSError("disk gone")

        rig.build(concurrency=4, latency=1)
        with pytest.raises(OSError, match="disk gone"):
            rig.run(source())
        assert len(rig.outcomes) == 6
