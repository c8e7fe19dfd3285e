"""Run a coroutine to its end from ordinary code, also where a loop is already running, as in a notebook.

On uvloop where it is installed, as it is wherever Airflow is: there a row takes less time.
"""

from __future__ import annotations

import asyncio
import contextvars
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_llm_provider.engine.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from airflow_llm_provider.engine.clock import Clock

T = TypeVar("T")
_fast_loop: Callable[[], asyncio.AbstractEventLoop]
try:
    from uvloop import new_event_loop as _fast_loop
except ImportError:  # Windows has none
    from asyncio import new_event_loop as _fast_loop


def loop_factory_for(clock: Clock | None) -> Callable[[], asyncio.AbstractEventLoop]:
    """Return what makes the loop for work by that clock; ``None``: the system's.

    Virtual time moves on when the loop has nothing to do, and only asyncio's own loop lets it see that.
    """
    return _fast_loop if clock is None or isinstance(clock, SystemClock) else asyncio.new_event_loop


def run_blocking(
    coroutine: Coroutine[Any, Any, T],
    *,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] = _fast_loop,
) -> T:
    """Run ``coroutine`` in a loop of its own and return its result.

    In the calling thread when it can, since only the main thread hears of Airflow's timeouts.
    """
    if not _loop_is_running():
        return _run(coroutine, loop_factory)
    context = contextvars.copy_context()
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(context.run, _run, coroutine, loop_factory).result()


def _loop_is_running() -> bool:
    # Apart, so that no error of the coroutine carries this one as its context into a task's log.
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _run(coroutine: Coroutine[Any, Any, T], loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> T:
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(_interruptible(coroutine))


async def _interruptible(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run ``coroutine``, and let what a signal handler raised end it, wherever the signal met the loop.

    Loops only report what is raised in a callback; uvloop also what a handler raises while it waits, where asyncio's own
    would raise it. A task timeout must not end there.
    """
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 -- a runner runs tasks
    raised: list[BaseException] = []

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, BaseException) and not isinstance(error, (Exception, asyncio.CancelledError)):
            raised.append(error)
            task.cancel()
        else:
            loop.default_exception_handler(context)

    asyncio.get_running_loop().set_exception_handler(handle)
    try:
        result = await coroutine
    except (Exception, asyncio.CancelledError):
        # Whatever went wrong while it unwound, the signal was first.
        if not raised:
            raise
    if raised:
        raise raised[0]
    return result
