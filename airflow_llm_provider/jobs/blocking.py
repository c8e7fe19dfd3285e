"""Run a coroutine to its end from ordinary code, also where a loop is already running, as in a notebook."""

from __future__ import annotations

import asyncio
import contextvars
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run ``coroutine`` in a loop of its own and return its result.

    In the calling thread when it can, since only the main thread hears of Airflow's timeouts.
    """
    if not _loop_is_running():
        return asyncio.run(coroutine)
    context = contextvars.copy_context()
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(context.run, asyncio.run, coroutine).result()


def _loop_is_running() -> bool:
    # Apart, so that no error of the coroutine carries this one as its context into a task's log.
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
