"""Cancellation and task timeouts: out at once, with no task left behind."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading

import pytest

from airflow_llm_provider.engine.call import Judgement
from airflow_llm_provider.engine.runner import Engine
from airflow_llm_provider.engine.status import RowStatus
from airflow_llm_provider.testing.scripted_client import Delayed, ScriptedClient


class TaskTimeout(BaseException):
    """As Airflow's: raised by a signal handler, at any bytecode, and no Exception."""


NEVER = Delayed(answer="never", seconds=float("inf"))


def timed_out():
    raise TaskTimeout


class TestCancellation:
    def test_cancelling_the_run_leaves_no_task_and_no_time_passes(self, rig):
        async def main():
            before = asyncio.all_tasks()
            run = asyncio.create_task(rig.arun(100))
            await rig.clock.sleep(0.5)
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run
            assert asyncio.all_tasks() == before
            return rig.clock.monotonic()

        rig.build(then=NEVER, timeout=1000)
        assert asyncio.run(main()) == 0.5
        assert all(call.cancelled for call in rig.client.calls)

    def test_a_deadline_around_the_run_works(self, rig):
        async def main():
            async with asyncio.timeout(0):
                await rig.arun(100)

        rig.build(then=NEVER, timeout=1000)
        with pytest.raises(TimeoutError):
            asyncio.run(main())
        assert rig.leftover_tasks == set()

    def test_a_task_timeout_raised_in_a_call_gets_out(self, rig):
        self.check_it_gets_out(rig, timed_out)

    def test_a_task_timeout_raised_in_a_callback_of_the_loop_gets_out(self, rig):
        """The loop itself would only log it."""
        self.check_it_gets_out(rig, lambda: asyncio.get_running_loop().call_soon(timed_out))

    def test_a_task_timeout_raised_in_somebody_elses_task_gets_out(self, rig):
        """asyncio tells of it when the task is forgotten."""

        async def background():
            await rig.clock.sleep(0.05)
            timed_out()

        async def forget():
            while True:
                await rig.clock.sleep(1)
                gc.collect()

        self.check_it_gets_out(
            rig, lambda: asyncio.get_running_loop().create_task(background()), meanwhile=forget
        )

    def test_a_task_timeout_raised_while_an_outcome_is_kept_gets_out(self, rig):
        rig.build(concurrency=2)
        with pytest.raises(TaskTimeout):
            rig.run(100, lambda _outcome: timed_out())
        assert rig.leftover_tasks == set()

    def check_it_gets_out(self, rig, in_third_call, meanwhile=None):
        def respond(call):
            if call.number == 3:
                in_third_call()
            return "ok" if call.number < 3 else NEVER

        rig.build(respond, concurrency=2, timeout=1000)
        with pytest.raises(TaskTimeout):
            rig.run(100, meanwhile=meanwhile)
        assert rig.leftover_tasks == set()
        assert rig.clock.monotonic() < 5
        assert len(rig.outcomes) >= 2

    def test_a_task_timeout_while_the_loop_is_idle_gets_out(self, make_requests):
        def handler(*_):
            raise TaskTimeout

        timer = threading.Timer(0.1, signal.pthread_kill, (threading.main_thread().ident, signal.SIGUSR1))

        def respond(call):
            if call.number == 8:
                timer.start()  # by then the loop waits
            return Delayed(answer="x", seconds=60)

        client = ScriptedClient(respond)

        async def main():
            engine = Engine(client, lambda _reply: Judgement(status=RowStatus.SUCCESS))
            await engine.run(make_requests(9), print)

        before = signal.signal(signal.SIGUSR1, handler)
        try:
            with pytest.raises(TaskTimeout):
                asyncio.run(main())
        finally:
            timer.join()
            signal.signal(signal.SIGUSR1, before)
        assert client.in_flight == 0
        assert all(call.cancelled for call in client.calls)
