"""Every way to end a run early, and what is kept."""

from __future__ import annotations

import asyncio
import signal
import threading

import pytest

from airflow_llm_provider.engine.call import CallError, FailureKind
from airflow_llm_provider.engine.events import Stopping
from airflow_llm_provider.engine.status import RowStatus
from airflow_llm_provider.testing.scripted_client import Delayed, reply

NEVER = Delayed(answer="never", seconds=float("inf"))


class TestStop:
    def stop_at(self, rig, seconds, times=1, grace=None):
        async def stopper():
            await rig.clock.sleep(seconds)
            for _ in range(times):
                rig.engine.stop("SIGTERM", grace=grace)

        return stopper

    def test_it_says_so_in_the_report(self, rig):
        rig.build(concurrency=2, latency=1)
        report = rig.run(100, total=100, meanwhile=self.stop_at(rig, 4.5))
        assert report.interrupted
        assert report.stop_reason == "SIGTERM"
        assert report.rows == len(rig.outcomes) == 10
        assert report.pending == 90

    def test_requests_in_flight_are_kept_when_they_come_back_in_time(self, rig):
        rig.build(concurrency=4, latency=1.5, stop_grace=2)
        rig.run(100, meanwhile=self.stop_at(rig, 0.5))
        assert len(rig.outcomes) == len(rig.client.calls) == 4
        assert rig.clock.monotonic() == pytest.approx(1.5)
        assert rig.leftover_tasks == set()

    def test_who_stops_may_say_how_long_it_can_wait(self, rig):
        rig.build(concurrency=4, latency=50, stop_grace=2)
        rig.run(100, meanwhile=self.stop_at(rig, 0.5, grace=8))
        assert rig.outcomes == []
        assert rig.clock.monotonic() == pytest.approx(8.5)

    def test_requests_in_flight_are_left_when_they_do_not(self, rig):
        rig.build(concurrency=4, latency=50, stop_grace=2)
        report = rig.run(100, meanwhile=self.stop_at(rig, 0.5))
        assert rig.outcomes == []
        assert rig.clock.monotonic() == pytest.approx(2.5)
        assert all(call.cancelled for call in rig.client.calls)
        assert report.requests <= 4 + 3  # the first three workers had gone on
        assert rig.leftover_tasks == set()

    @pytest.mark.parametrize(
        "then", [NEVER, CallError(FailureKind.OVERLOADED, "http_503", "", retry_after=99)]
    )
    def test_an_unusable_answer_that_is_paid_for_is_kept_when_no_other_comes(self, rig, then):
        rig.build(["bad"], then=then, concurrency=1, latency=1)
        rig.run(1, total=1, meanwhile=self.stop_at(rig, 5))
        assert [(outcome.status, outcome.text) for outcome in rig.outcomes] == [
            (RowStatus.INVALID_OUTPUT, "bad")
        ]

    def test_a_row_that_comes_back_for_another_attempt_does_not_use_up_the_grace(self, rig):
        rig.build(
            then=CallError(FailureKind.OVERLOADED, "http_503", "busy", retry_after=100),
            latency=1,
            concurrency=1,
        )
        rig.run(10, meanwhile=self.stop_at(rig, 0.5))
        assert rig.clock.monotonic() == pytest.approx(1)

    def test_nothing_more_is_pulled(self, rig, make_requests):
        pulled = []

        def source():
            for request in make_requests(100):
                pulled.append(request)
                yield request

        rig.build(concurrency=4, latency=1)
        rig.run(source(), meanwhile=self.stop_at(rig, 0.5))
        assert len(pulled) == len(rig.client.calls) == 4

    @pytest.mark.parametrize("grace", [None, 8])
    def test_a_second_stop_waits_no_longer(self, rig, grace):
        rig.build(concurrency=4, latency=50, stop_grace=2)
        rig.run(100, meanwhile=self.stop_at(rig, 0.5, times=2, grace=grace))
        assert rig.clock.monotonic() == pytest.approx(0.5)

    def test_waits_end_at_once(self, rig):
        rig.build(then=CallError(FailureKind.OVERLOADED, "http_503", "busy", retry_after=250), latency=0.1)
        report = rig.run(10, total=10, meanwhile=self.stop_at(rig, 1))
        assert rig.clock.monotonic() == pytest.approx(1)
        assert report.pending == 10

    def test_a_pause_for_everyone_ends_at_once(self, rig):
        rig.build(then=CallError(FailureKind.RATE_LIMITED, "http_429", "slow", retry_after=250))
        report = rig.run(10, meanwhile=self.stop_at(rig, 1))
        assert rig.clock.monotonic() == pytest.approx(1)
        assert report.interrupted

    def test_an_async_source_that_hangs_ends_at_once(self, rig, make_requests):
        async def source():
            yield make_requests(1)[0]
            await rig.clock.sleep(1000)

        rig.build()
        report = rig.run(source(), meanwhile=self.stop_at(rig, 1))
        assert report.interrupted
        assert report.rows == 1
        assert rig.clock.monotonic() == pytest.approx(1)
        assert rig.leftover_tasks == set()

    def test_before_the_run_nothing_is_pulled_or_sent(self, rig):
        rig.build()
        rig.engine.stop("cancelled before it began")
        report = rig.run(5, total=5)
        assert report.interrupted
        assert (report.requests, report.pending) == (0, 5)

    def test_after_the_run_it_does_nothing(self, rig):
        rig.build()
        rig.run(5)
        rig.engine.stop("too late")
        assert not rig.engine.report.interrupted

    def test_when_the_last_answers_arrive_in_the_grace_the_run_is_complete(self, rig):
        rig.build(concurrency=4, latency=1)
        report = rig.run(4, total=4, meanwhile=self.stop_at(rig, 0.5))
        assert report.rows == 4
        assert not report.interrupted
        assert report.stop_reason is None

    def test_it_works_from_another_thread(self, rig):
        rig.build(then=NEVER, timeout=1000, stop_grace=0)

        async def from_thread():
            await asyncio.to_thread(rig.engine.stop, "thread")

        rig.clock._autojump = None  # real time only: the thread must wake the loop
        assert rig.run(5, meanwhile=from_thread).stop_reason == "thread"

    def test_it_works_from_a_signal_handler_while_the_loop_is_idle(self, rig):
        rig.build(then=NEVER, timeout=1000, stop_grace=0)
        rig.clock._autojump = None
        before = signal.signal(signal.SIGUSR1, lambda *_: rig.engine.stop("signal"))
        timer = threading.Timer(0.05, signal.pthread_kill, (threading.main_thread().ident, signal.SIGUSR1))
        timer.start()
        try:
            assert rig.run(5).stop_reason == "signal"
        finally:
            timer.join()
            signal.signal(signal.SIGUSR1, before)

    def test_even_a_client_that_never_yields_can_be_stopped(self, rig):
        class Instant:
            async def complete(self, body, *, timeout):
                return reply()

        rig.build(parts={"client": Instant()})

        def stop_after_ten(outcome):
            rig.outcomes.append(outcome)
            if len(rig.outcomes) == 10:
                rig.engine.stop("enough")

        report = rig.run(1000, stop_after_ten, total=1000)
        assert report.rows == 10
        assert report.pending == 990

    def test_observers_hear_why_and_how_long(self, rig):
        rig.build(latency=1)
        rig.run(10, meanwhile=self.stop_at(rig, 0.5))
        assert rig.observer.of(Stopping) == [Stopping(reason="SIGTERM", grace=2.0)]


class TestStorageFailure:
    def test_an_outcome_that_cannot_be_kept_stops_everything_and_is_raised(self, rig):
        def full(outcome):
            if len(rig.outcomes) == 3:
                raise OSError("disk full")
            rig.outcomes.append(outcome)

        rig.build(concurrency=4, latency=1)
        with pytest.raises(OSError, match="disk full"):
            rig.run(100, full, total=100)
        report = rig.engine.report
        assert report.rows == len(rig.outcomes) == 3
        assert report.pending == 97
        assert report.requests <= 4 + 3  # the first three workers had gone on
        assert report.usage.total_tokens >= 4 * 15  # paid all the same
        assert rig.leftover_tasks == set()

    def test_nothing_more_is_handed_over_afterwards(self, rig):
        calls = []

        def broken(outcome):
            calls.append(outcome)
            raise OSError("disk full")

        rig.build(concurrency=8)
        with pytest.raises(OSError, match="disk full"):
            rig.run(100, broken)
        assert len(calls) == 1

    def test_it_cuts_the_grace_of_an_earlier_stop_short(self, rig):
        def broken(outcome):
            raise OSError("disk full")

        def respond(call):
            if call.number == 0:
                return CallError(FailureKind.QUOTA, "q", "No.")
            return Delayed(answer="ok", seconds=1 if call.number == 1 else 10)

        rig.build(respond, concurrency=4, drain_grace=60)
        with pytest.raises(Exception, match="no credit") as raised:
            rig.run(100, broken)
        assert raised.value.__notes__ == ["While the run stopped, OSError was raised too"]
        assert rig.clock.monotonic() == pytest.approx(1)
