"""Rows in, outcomes out: every row once, as soon as it exists, with what it cost."""

from __future__ import annotations

import asyncio

import pytest

from airflow_llm_provider.engine.call import CallError, FailureKind, Reply
from airflow_llm_provider.engine.events import AttemptFinished, AttemptStarted, RowDone
from airflow_llm_provider.engine.limits.account import AccountLimiter
from airflow_llm_provider.engine.status import RowStatus
from airflow_llm_provider.engine.usage import Usage
from airflow_llm_provider.testing.scripted_client import Delayed, reply


class TestRun:
    def test_every_row_is_answered_once(self, rig):
        rig.build(concurrency=4)
        report = rig.run(10)
        assert sorted(rig.statuses) == list(range(10))
        assert report.rows_by_status == {"success": 10}
        assert (report.requests, report.retries, report.pending) == (10, 0, 0)
        assert not report.interrupted
        assert report.stop_reason is None

    def test_no_rows_are_a_run_too(self, rig):
        rig.build()
        report = rig.run(0)
        assert (report.rows, report.requests, report.pending) == (0, 0, 0)

    def test_outcomes_come_in_the_order_of_completion_as_soon_as_they_exist(self, rig):
        rig.build(lambda call: Delayed(answer="ok", seconds=10 - call.body["row"]), concurrency=3)
        seen = []
        rig.run(3, lambda outcome: seen.append((outcome.index, rig.clock.monotonic())))
        assert seen == [(2, 8), (1, 9), (0, 10)]

    def test_at_most_concurrency_requests_are_in_flight_and_that_many_when_there_is_work(self, rig):
        rig.build(concurrency=5)
        rig.run(50)
        assert rig.client.max_in_flight == 5
        assert rig.clock.monotonic() == pytest.approx(50 / 5 * 0.1)

    def test_there_are_no_more_workers_than_rows(self, rig):
        rig.build(concurrency=10**9)
        assert rig.run(3, total=3).rows_by_status == {"success": 3}

    def test_requests_are_pulled_only_as_slots_get_free(self, rig, make_requests):
        rig.build(concurrency=3)
        pulled = 0
        ahead = []

        def source():
            nonlocal pulled
            for request in make_requests(200):
                pulled += 1
                yield request

        rig.run(source(), lambda outcome: ahead.append(pulled - len(ahead)))
        assert max(ahead) <= 3

    def test_an_async_source_works_the_same(self, rig, make_requests):
        async def source():
            for request in make_requests(9):
                await rig.clock.sleep(1)
                yield request

        rig.build(concurrency=3)
        assert rig.run(source()).rows_by_status == {"success": 9}

    def test_the_first_request_goes_out_alone_for_a_moment(self, rig):
        rig.build(concurrency=4, probe_window=0.25, latency=10)
        rig.run(4)
        assert [call.started for call in rig.client.calls] == [0, 0.25, 0.25, 0.25]

    def test_that_moment_begins_when_the_limits_let_it_out(self, rig):
        limiter = AccountLimiter(clock=rig.clock)
        rig.build(concurrency=4, probe_window=0.25, latency=10, parts={"limiter": limiter})

        async def paused():
            await limiter.pause(60.0)
            return await rig.arun(4)

        asyncio.run(paused())
        first, *others = [call.started for call in rig.client.calls]
        assert first >= 60
        assert min(others) >= first + 0.25

    def test_the_first_answer_ends_that_moment(self, rig):
        rig.build(concurrency=4, probe_window=5, latency=0.1)
        rig.run(4)
        assert rig.clock.monotonic() == pytest.approx(0.2)

    def test_where_requests_are_answered_already_none_goes_out_alone(self, rig):
        limiter = AccountLimiter(clock=rig.clock)

        def starts():
            rig.build(concurrency=4, probe_window=5, latency=1, parts={"limiter": limiter})
            rig.run(4)
            return [call.started for call in rig.client.calls]

        first, second = starts(), starts()
        assert first[1] == first[0] + 1
        assert second[-1] - second[0] < 0.1

    def test_a_run_that_is_stopped_waits_for_no_limiter_that_does_not_answer(self, rig):
        class Silent(AccountLimiter):
            async def is_trusted(self):
                await rig.clock.sleep(60)
                return True

        async def stop():
            await rig.clock.sleep(1)
            rig.engine.stop("SIGTERM")

        rig.build(concurrency=4, probe_window=5, parts={"limiter": Silent(clock=rig.clock)})
        assert rig.run(4, meanwhile=stop).stop_reason == "SIGTERM"
        assert rig.clock.monotonic() < 2

    def test_the_client_gets_body_and_timeout_as_they_are(self, rig):
        rig.build(timeout=7)
        rig.run(1)
        assert rig.client.calls[0].body == {"model": "m", "row": 0}
        assert rig.client.calls[0].timeout == 7
        assert not rig.client.closed

    def test_an_engine_is_good_for_one_run(self, rig):
        rig.build()
        rig.run(1)
        with pytest.raises(RuntimeError, match="one run"):
            rig.run(1)

    def test_no_task_is_left_behind(self, rig):
        rig.build()
        rig.run(10)
        assert rig.leftover_tasks == set()

    def test_the_loops_exception_handler_is_given_back(self, rig):
        def mine(loop, context):
            raise AssertionError(context)

        async def main():
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(mine)
            await rig.arun(3)
            return loop.get_exception_handler()

        rig.build()
        assert asyncio.run(main()) is mine


class TestOutcome:
    def test_it_holds_what_the_endpoint_said(self, rig):
        rig.build([reply("yes", model="m-2", request_id="req_1")], latency=0.5)
        rig.run(1)
        (outcome,) = rig.outcomes
        assert outcome.status is RowStatus.SUCCESS
        assert (outcome.text, outcome.answer, outcome.model) == ("yes", "yes", "m-2")
        assert (outcome.finish_reason, outcome.request_id, outcome.attempts) == ("stop", "req_1", 1)
        assert outcome.latency_ms == 500
        assert outcome.usage == Usage(prompt_tokens=10, completion_tokens=5)

    def test_E5_a_refusals_words_are_kept(self, rig):
        rig.build([Reply(text=None, refusal="I can't help")])
        rig.run(1)
        assert rig.outcomes[0].text == "I can't help"

    def test_E11_usage_and_cost_add_up_over_all_attempts(self, rig):
        rig.build(
            ["bad", "bad", "good"],
            retry={"max_output_attempts": 3},
            parts={"price": lambda model, usage: usage.total_tokens / 1000},
        )
        report = rig.run(1)
        (outcome,) = rig.outcomes
        assert (outcome.status, outcome.attempts) == (RowStatus.SUCCESS, 3)
        assert outcome.usage == Usage(prompt_tokens=30, completion_tokens=15)
        assert outcome.cost_usd == pytest.approx(0.045)
        assert (report.requests, report.retries) == (3, 2)
        assert report.usage == outcome.usage
        assert report.cost_usd == pytest.approx(0.045)

    def test_E9_an_unusable_answer_ends_the_row_when_its_attempts_are_used_up(self, rig):
        rig.build(then="bad", retry={"max_output_attempts": 2})
        report = rig.run(1)
        assert (rig.outcomes[0].status, rig.outcomes[0].attempts) == (RowStatus.INVALID_OUTPUT, 2)
        assert rig.outcomes[0].text == "bad"
        assert report.errors == {"invalid_json": 1}

    def test_E9_a_wrong_answer_is_not_asked_again(self, rig):
        rig.build(then="wrong", retry={"max_output_attempts": 5})
        assert rig.run(1).requests == 1

    @pytest.mark.parametrize("kind", [FailureKind.OVERLOADED, FailureKind.ROW])
    def test_an_earlier_answer_that_is_paid_for_outlives_a_later_failure(self, rig, kind):
        rig.build(["bad"], then=CallError(kind, "http_503", "busy"))
        rig.run(1)
        (outcome,) = rig.outcomes
        assert (outcome.status, outcome.text) == (RowStatus.INVALID_OUTPUT, "bad")
        assert outcome.finish_reason == "stop"
        assert outcome.usage.total_tokens == 15


class TestCost:
    def price(self, model, usage):
        return {"scripted": 1.0}.get(model)

    def test_an_unknown_price_makes_row_and_run_unknown(self, rig):
        rig.build(["a", reply("b", model="other"), "c"], concurrency=1, parts={"price": self.price})
        report = rig.run(3)
        assert [outcome.cost_usd for outcome in rig.outcomes] == [1.0, None, 1.0]
        assert report.cost_usd is None

    def test_one_unknown_attempt_makes_the_whole_row_unknown(self, rig):
        rig.build([reply("bad", model="other"), "good"], parts={"price": self.price})
        rig.run(1)
        assert rig.outcomes[0].cost_usd is None

    def test_usage_that_was_not_reported_has_no_known_price(self, rig):
        rig.build([Reply(text="a", model="scripted")], parts={"price": self.price})
        rig.run(1)
        assert rig.outcomes[0].cost_usd is None

    def test_without_a_price_list_nothing_is_known(self, rig):
        rig.build()
        assert rig.run(1).cost_usd is None
        assert rig.outcomes[0].cost_usd is None

    def test_a_row_without_a_completion_cost_nothing(self, rig):
        rig.build([CallError(FailureKind.ROW, "x", "x")], parts={"price": self.price})
        assert rig.run(1).cost_usd == 0
        assert rig.outcomes[0].cost_usd == 0

    def test_a_reply_without_a_model_is_priced_by_the_requests(self, rig):
        asked = []

        def price(model, usage):
            asked.append(model)

        rig.build([reply("a", model=None)], parts={"price": price})
        rig.run(1)
        assert asked == ["m"]


class TestEvents:
    def test_every_attempt_and_row_is_told_in_order(self, rig):
        rig.build(
            [CallError(FailureKind.OVERLOADED, "http_503", "busy", status_code=503), "ok"], concurrency=1
        )
        rig.run(1)
        events = [e for e in rig.observer.events if isinstance(e, (AttemptStarted, AttemptFinished, RowDone))]
        assert [type(event).__name__ for event in events] == [
            "AttemptStarted", "AttemptFinished", "AttemptStarted", "AttemptFinished", "RowDone",
        ]  # fmt: skip
        failed, mended = events[1], events[3]
        assert (failed.verdict, failed.code, failed.status_code) == ("dropped", "http_503", 503)
        assert (mended.verdict, mended.attempt) == ("success", 2)
        assert mended.latency == pytest.approx(0.1)
        assert mended.usage.total_tokens == 15

    def test_no_event_holds_words_of_a_row(self, rig):
        rig.build(then=reply("a-secret-answer"))
        rig.run(2)
        assert "a-secret-answer" not in repr(rig.observer.events)

    def test_nobody_needs_to_listen(self, rig):
        rig.build(parts={"observer": None})
        assert rig.run(3).rows == 3


class TestReport:
    def test_it_can_be_read_at_any_time(self, rig):
        rig.build(concurrency=1, latency=1)
        seen = []
        assert rig.engine.report.seconds == 0
        rig.run(3, lambda outcome: seen.append((rig.engine.report.rows, rig.engine.report.seconds)), total=3)
        assert seen == [(0, 1), (1, 2), (2, 3)]
        assert rig.engine.report.seconds == 3

    def test_failed_requests_are_counted_even_when_another_attempt_mended_them(self, rig):
        rig.build([CallError(FailureKind.TIMEOUT, "timeout", "x")] * 2)
        report = rig.run(3)
        assert report.failed_requests == {"timeout": 2}
        assert report.errors == {}
