"""Virtual time on a real asyncio loop: hours pass in milliseconds, in an order that never varies."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from typing import Any

#: Start of virtual epoch time: 2023-11-14T22:13:20Z. Any fixed moment does.
_EPOCH = 1_700_000_000.0
#: Passes of the loop without anything ready that prove it idle: the first may have been queued before the loop last
#: asked the operating system for input, the second was not.
_IDLE_PASSES = 2


class ManualClock:
    """A :class:`~airflow_llm_provider.engine.clock.Clock` whose time moves only when told, or when everyone sleeps.

    With ``autojump`` (the default), time jumps to the next sleeper's deadline as soon as every task of the running
    loop waits for something. Use it with any loop of asyncio's own: ``asyncio.run(main(clock))``. Only sleeps on this
    clock are virtual; the loop's own timers, threads and sockets keep real time. When a test waits for those too, give
    ``autojump`` the real seconds of silence that shall count as idle, such as ``0.01``.

    :param start: value of :meth:`monotonic` at first.
    :param epoch: value of :meth:`time` when :meth:`monotonic` is 0.
    :param autojump: real seconds without activity before time jumps; ``None``: time moves by :meth:`jump` only.
    """

    def __init__(self, *, start: float = 0.0, epoch: float = _EPOCH, autojump: float | None = 0.0) -> None:
        self._now = start
        self._epoch = epoch
        self._autojump = autojump
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()
        self._watched: asyncio.AbstractEventLoop | None = None
        self._idle_passes = 0
        #: Total of all sleeps asked for, for tests that count waiting.
        self.slept = 0.0

    def __repr__(self) -> str:
        return f"<ManualClock now={self._now:g} sleepers={self.sleepers}>"

    @property
    def sleepers(self) -> int:
        """How many sleeps are under way."""
        return sum(not future.done() for _, _, future in self._sleepers)

    def monotonic(self) -> float:
        """Return the virtual seconds."""
        return self._now

    def time(self) -> float:
        """Return the virtual seconds since the epoch."""
        return self._epoch + self._now

    def jump(self, seconds: float) -> None:
        """Move time forward and wake whoever is due, in the order of their deadlines.

        :raises ValueError: when ``seconds`` is negative.
        """
        if seconds < 0:
            raise ValueError(f"cannot jump by {seconds} seconds: time does not go back")
        self._now += seconds
        self._wake()

    async def sleep(self, seconds: float) -> None:
        """Wait until ``seconds`` of virtual time have passed; 0 or less lets others run once."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        self.slept += seconds
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._order), future))
        self._watch(loop)
        await future

    def _wake(self) -> None:
        while self._sleepers and (self._sleepers[0][0] <= self._now or self._sleepers[0][2].done()):
            _, _, future = heapq.heappop(self._sleepers)
            if not future.done():
                future.set_result(None)

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Keep looking whether ``loop`` is idle, until nobody sleeps any more."""
        if self._autojump is None or self._watched is loop:
            return
        self._watched = loop
        self._idle_passes = 0
        loop.call_soon(self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._watched is not loop:  # a later loop uses this clock now
            return
        self._wake()
        if not self._sleepers:
            self._watched = None
            return
        self._idle_passes = 0 if _has_ready(loop) else self._idle_passes + 1
        if self._idle_passes >= _IDLE_PASSES:
            self._idle_passes = 0
            self._now = max(self._now, self._sleepers[0][0])
            self._wake()
        if self._autojump:
            loop.call_later(self._autojump / _IDLE_PASSES, self._look, loop)
        else:
            loop.call_soon(self._look, loop)


def _has_ready(loop: Any) -> bool:
    """Tell whether callbacks wait to be run. asyncio has no public way to ask, so this reads its queue."""
    return bool(loop._ready)  # noqa: SLF001
