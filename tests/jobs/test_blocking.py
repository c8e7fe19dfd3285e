from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest
import uvloop

from airflow_llm_provider.engine.clock import SystemClock
from airflow_llm_provider.jobs.blocking import loop_factory_for, run_blocking
from airflow_llm_provider.testing.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


async def fail() -> None:
    raise ValueError("the coroutine's own")


async def thread_name() -> str:
    return threading.current_thread().name


class TestRunBlocking:
    def test_runs_in_the_calling_thread_when_no_loop_runs(self) -> None:
        assert run_blocking(thread_name()) == threading.current_thread().name

    def test_runs_beside_a_running_loop(self) -> None:
        async def cell() -> str:
            return run_blocking(thread_name())

        assert asyncio.run(cell()) != threading.current_thread().name

    def test_an_error_comes_alone(self) -> None:
        with pytest.raises(ValueError, match="own") as caught:
            run_blocking(fail())
        assert caught.value.__context__ is None


class TaskTimeoutError(BaseException):
    """As Airflow's is: no Exception."""


@pytest.fixture(params=["asyncio", "uvloop"])
def loop_factory(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    return asyncio.new_event_loop if request.param == "asyncio" else uvloop.new_event_loop


@pytest.fixture
def alarm() -> Iterator[Callable[[], None]]:
    """Send a signal whose handler raises, as a task's time limit does."""

    def time_out(*_: object) -> None:
        raise TaskTimeoutError

    before = signal.signal(signal.SIGUSR1, time_out)
    yield lambda: os.kill(os.getpid(), signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Python's own handler of Ctrl-C, also where the tests run in the background, whose processes ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class TestSignals:
    def test_what_a_handler_raises_while_the_loop_waits_ends_it(
        self, loop_factory: Callable[[], asyncio.AbstractEventLoop], alarm: Callable[[], None]
    ) -> None:
        unwound = []

        async def wait() -> None:
            try:
                threading.Timer(0.05, alarm).start()  # by then the loop waits
                await asyncio.Event().wait()
            finally:
                unwound.append(True)

        with pytest.raises(TaskTimeoutError):
            run_blocking(wait(), loop_factory=loop_factory)
        assert unwound

    def test_what_a_handler_raises_in_a_callback_ends_it(
        self, loop_factory: Callable[[], asyncio.AbstractEventLoop], alarm: Callable[[], None]
    ) -> None:
        async def wait() -> None:
            asyncio.get_running_loop().call_soon(alarm)
            await asyncio.Event().wait()

        with pytest.raises(TaskTimeoutError):
            run_blocking(wait(), loop_factory=loop_factory)

    def test_what_a_handler_raises_outlives_an_error_of_the_unwinding(
        self, loop_factory: Callable[[], asyncio.AbstractEventLoop], alarm: Callable[[], None]
    ) -> None:
        async def wait() -> None:
            asyncio.get_running_loop().call_soon(alarm)
            try:
                await asyncio.Event().wait()
            finally:
                await fail()

        with pytest.raises(TaskTimeoutError):
            run_blocking(wait(), loop_factory=loop_factory)

    def test_what_a_handler_raises_while_a_task_works_ends_it(
        self, loop_factory: Callable[[], asyncio.AbstractEventLoop], alarm: Callable[[], None]
    ) -> None:
        async def work() -> None:
            alarm()

        with pytest.raises(TaskTimeoutError):
            run_blocking(work(), loop_factory=loop_factory)

    @pytest.mark.usefixtures("interruptible")
    def test_an_interrupt_cancels_first(self, loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
        unwound = []

        async def wait() -> None:
            try:
                threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                unwound.append(True)
                raise

        with pytest.raises(KeyboardInterrupt):
            run_blocking(wait(), loop_factory=loop_factory)
        assert unwound

    def test_a_handler_that_only_notes_runs_while_the_loop_waits(
        self, loop_factory: Callable[[], asyncio.AbstractEventLoop]
    ) -> None:
        async def wait() -> str:
            loop, noted = asyncio.get_running_loop(), asyncio.Event()
            before = signal.signal(signal.SIGTERM, lambda *_: loop.call_soon_threadsafe(noted.set))
            try:
                threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
                await noted.wait()
            finally:
                signal.signal(signal.SIGTERM, before)
            return "noted"

        assert run_blocking(wait(), loop_factory=loop_factory) == "noted"


class TestLoop:
    def test_is_uvloop_where_it_is_installed(self) -> None:
        async def kind() -> str:
            return type(asyncio.get_running_loop()).__module__

        assert run_blocking(kind()) == "uvloop"

    def test_is_asyncios_for_virtual_time(self) -> None:
        assert loop_factory_for(ManualClock()) is asyncio.new_event_loop
        assert loop_factory_for(SystemClock()) is loop_factory_for(None) is uvloop.new_event_loop

    def test_is_asyncios_without_it(self) -> None:
        code = (
            "import sys; sys.modules['uvloop'] = None\n"
            "import asyncio\n"
            "from airflow_llm_provider.jobs.blocking import run_blocking\n"
            "async def kind(): return type(asyncio.get_running_loop()).__module__\n"
            "print(run_blocking(kind()))"
        )
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert ran.stdout.startswith("asyncio.")
