"""Time, injected: policies take ``now``, the runner holds the clock."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """The three things the engine asks of time."""

    def monotonic(self) -> float:
        """Return seconds that never go back, comparable within this process only."""
        ...

    def time(self) -> float:
        """Return seconds since the epoch: for what leaves the process."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait for ``seconds``, letting others run."""
        ...


class SystemClock:
    """The real time."""

    def monotonic(self) -> float:
        """Return :func:`time.monotonic`."""
        return time.monotonic()

    def time(self) -> float:
        """Return :func:`time.time`."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Sleep on the running loop."""
        await asyncio.sleep(seconds)
