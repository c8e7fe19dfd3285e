"""The workers of a run: how they start, and every way in which they end."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from airflow_llm_provider.engine.halt import Halt
from airflow_llm_provider.errors import LLMError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from airflow_llm_provider.engine.clock import Clock

#: Real seconds that cancelled workers get to unwind before the run ends without them.
_UNWIND_SECONDS = 5.0


class Crew:
    """Runs ``size`` workers until the work is done or the run is halted. Good for one run.

    Only the loop's thread may call its methods, but for :meth:`stop`.

    :param work: what one worker does; returns when there is nothing left to do, or when :attr:`halting`.
    :param probe_window: seconds from its first :meth:`engage` for which the first worker works alone, or until
        :meth:`probe_over`.
    :param stop_grace: seconds that engaged workers get after :meth:`stop`, unless it says otherwise.
    :param drain_grace: the same after a worker raised.
    :param on_halt: hears the reason and the grace of a halt.
    """

    def __init__(
        self,
        work: Callable[[], Awaitable[None]],
        *,
        size: int,
        probe_window: float,
        stop_grace: float,
        drain_grace: float,
        clock: Clock,
        on_halt: Callable[[str, float], None],
    ) -> None:
        self._work = work
        self._size = size
        self._probe_window = probe_window
        self._stop_grace = stop_grace
        self._drain_grace = drain_grace
        self._clock = clock
        self._on_halt = on_halt
        self._workers: set[asyncio.Task[None]] = set()
        self._engaged: set[asyncio.Task[Any]] = set()
        self._changed = asyncio.Event()
        self._halt: Halt | None = None
        self._stop_reason: str | None = None
        self._stops = 0
        self._probing = True
        self._probed_at: float | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def halting(self) -> bool:
        """Whether nothing new may begin."""
        return self._halt is not None or self._stop_reason is not None

    @property
    def probing(self) -> bool:
        """Whether the first worker still works alone."""
        return self._probing

    @property
    def halt_reason(self) -> str | None:
        """Why the run ends, or ended, early; ``None``: it does not."""
        return self._stop_reason if self._halt is None else self._halt.reason

    @property
    def stopped(self) -> bool:
        """Whether :meth:`stop` was called."""
        return self._stop_reason is not None

    async def run(self, jobs: int | None = None) -> None:
        """Work until everything is done or the run is halted.

        :param jobs: how much there is to do: more workers than that would have none. ``None``: nobody knows.
        :raises BaseException: the error that halted the run.
        """
        self._loop = loop = asyncio.get_running_loop()
        if jobs is not None:
            self._size = max(1, min(self._size, jobs))
        previous = loop.get_exception_handler()
        handler = self._loop_error_handler(previous)
        loop.set_exception_handler(handler)
        try:
            if self._stop_reason is None:
                await self._supervise()
        finally:
            try:
                await self._unwind()
            finally:
                self._loop = None
                if loop.get_exception_handler() is handler:
                    loop.set_exception_handler(previous)
        if self._halt is not None and self._halt.error is not None:
            raise self._halt.error

    def stop(self, reason: str, *, grace: float | None = None) -> None:
        """Halt without an error. Callable from any thread and from a signal handler; a second call waits no longer.

        :param grace: seconds that engaged workers get; ``None``: ``stop_grace``.
        """
        if self._stop_reason is None:
            self._stop_reason = reason
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop was closed a moment ago: the run is over
                loop.call_soon_threadsafe(self._on_stop, reason, self._stop_grace if grace is None else grace)

    def halt(self, error: BaseException, *, grace: float | None = None) -> None:
        """Halt because of ``error``, which :meth:`run` raises in the end.

        :param grace: seconds that engaged workers get; ``None``: ``drain_grace``.
        """
        # The text of an arbitrary exception may quote row text; our own errors never do.
        reason = str(error) if isinstance(error, LLMError) else type(error).__name__
        self._begin_halt(reason, error, self._drain_grace if grace is None else grace)

    def engage(self, worker: asyncio.Task[Any]) -> None:
        """Mark a worker that holds something worth waiting for: a halt gives it the grace."""
        self._engaged.add(worker)
        if self._probing and self._probed_at is None:
            self._probed_at = self._clock.monotonic()
            self._changed.set()

    def disengage(self, worker: asyncio.Task[Any]) -> None:
        """Undo :meth:`engage`: a halt cancels the worker at once."""
        self._engaged.discard(worker)

    def probe_over(self) -> None:
        """Let the other workers start."""
        if self._probing:
            self._probing = False
            self._changed.set()

    async def _supervise(self) -> None:
        self._spawn()
        while self._probing and self._workers and not self.halting:
            began = self._probed_at
            rest = None if began is None else began + self._probe_window - self._clock.monotonic()
            if self._size == 1 or self._probe_window <= 0 or (rest is not None and rest <= 0):
                break
            await self._change(rest)
        self._probing = False
        await self._fill()
        while self._workers and self._halt is None:
            await self._change(None)
        for worker in self._workers - self._engaged:
            worker.cancel()
        while self._workers and self._halt is not None:
            rest = self._halt.deadline - self._clock.monotonic()
            if rest <= 0:
                break
            await self._change(rest)

    async def _unwind(self) -> None:
        """Leave no task behind."""
        for worker in self._workers:
            worker.cancel()
        if self._workers:
            await asyncio.wait(set(self._workers), timeout=_UNWIND_SECONDS)

    async def _change(self, seconds: float | None) -> None:
        """Wait until something changed, at most ``seconds``."""
        self._changed.clear()
        if seconds is None:
            await self._changed.wait()
            return
        waiter = asyncio.ensure_future(self._changed.wait())
        timer = asyncio.ensure_future(self._clock.sleep(seconds))
        both: set[asyncio.Future[Any]] = {waiter, timer}
        try:
            done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            for future in done:
                future.result()
        finally:
            waiter.cancel()
            timer.cancel()
            await asyncio.wait(both)

    async def _fill(self) -> None:
        """Start the other workers, each after the one before has had its turn.

        All at once, the first would send nothing until the last has prepared its request.
        """
        for _ in range(self._size - 1):
            if not self._workers or self.halting:
                return
            self._spawn()
            await asyncio.sleep(0)

    def _spawn(self) -> None:
        worker = asyncio.ensure_future(self._worker())
        self._workers.add(worker)
        worker.add_done_callback(self._on_worker_done)

    async def _worker(self) -> None:
        try:
            await self._work()
        except asyncio.CancelledError:
            if not self.halting:
                raise
        except Exception as error:  # noqa: BLE001 -- raised again by run()
            self.halt(error)

    def _on_worker_done(self, worker: asyncio.Task[None]) -> None:
        self._workers.discard(worker)
        if worker.cancelled():
            if not self.halting:
                self._begin_halt("cancelled", None, 0.0)
        elif (error := worker.exception()) is not None:
            self.halt(error, grace=0.0)
        if not self._workers:
            self._changed.set()

    def _on_stop(self, reason: str, grace: float) -> None:
        if self._loop is None:  # the run ended before the loop came to this
            return
        self._stops += 1
        self._begin_halt(reason, None, grace if self._stops == 1 else 0.0)

    def _begin_halt(self, reason: str, error: BaseException | None, grace: float) -> None:
        deadline = self._clock.monotonic() + grace
        if self._halt is None:
            self._halt = Halt(reason=reason, error=error, deadline=deadline)
            self._on_halt(reason, grace)
        else:
            self._halt.join(reason, error, deadline)
        self._changed.set()

    def _loop_error_handler(
        self, previous: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None
    ) -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object]:
        """Return a handler that rescues what a signal handler raised in a callback of the loop.

        The loop only reports exceptions of callbacks; a task timeout among them must end the run.
        """

        def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            error = context.get("exception")
            if isinstance(error, BaseException) and not isinstance(
                error, (Exception, asyncio.CancelledError)
            ):
                self.halt(error, grace=0.0)
            elif previous is not None:
                previous(loop, context)
            else:
                loop.default_exception_handler(context)

        return handle
