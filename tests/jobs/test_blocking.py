from __future__ import annotations

import asyncio
import threading

import pytest

from airflow_llm_provider.jobs.blocking import run_blocking


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
