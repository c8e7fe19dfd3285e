"""Senders in virtual time, for the limiters' contract suites."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from airflow_llm_provider.engine.limiter import Cost
from airflow_llm_provider.testing.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from airflow_llm_provider.engine.limiter import Limiter, Reservation
    from airflow_llm_provider.engine.limits.rate_limits import RateLimits


def most_in_a_window(sent: list[tuple[float, int]], window: float) -> int:
    """Return the most that any half-open window of time holds; the fullest ones begin with a request.

    :param sent: time and amount of every request.
    """
    sent = sorted(sent)
    times = [at for at, _ in sent]
    sums = [0, *accumulate(amount for _, amount in sent)]
    return max((sums[bisect_left(times, at + window)] - sums[i] for i, at in enumerate(times)), default=0)


@dataclass
class Sender:
    """Sends requests through a limiter as the engine does, and writes down when each went out.

    :param latency: seconds that an answer takes.
    """

    limiter: Limiter
    clock: ManualClock
    latency: float = 1.0
    sent: list[tuple[float, int]] = field(default_factory=list)

    async def admit(self, cost: Cost) -> Reservation:
        """Wait until a request may go out."""
        reservation = await self.limiter.reserve(cost)
        wait = reservation.wait
        while wait > 0:
            await self.clock.sleep(wait)
            wait = await self.limiter.recheck(reservation)
        return reservation

    async def send(self, cost: Cost, used: int) -> None:
        """Send one request that takes ``used`` tokens."""
        reservation = await self.admit(cost)
        self.sent.append((self.clock.monotonic(), used))
        await self.clock.sleep(self.latency)
        await self.limiter.settle(reservation, Cost(tokens=used))

    async def send_until(self, end: float, cost: Cost, used: int, *, in_flight: int) -> None:
        """Send as many as ``in_flight`` at a time allow, until ``end``."""

        async def worker() -> None:
            while self.clock.monotonic() < end:
                await self.send(cost, used)

        await asyncio.gather(*(worker() for _ in range(in_flight)))


async def close(senders: list[Sender]) -> None:
    """Close the senders' limiters."""
    for sender in senders:
        await sender.limiter.aclose()


class SharedAccount:
    """What the suites' tests run on: any number of senders on one account that the test has for itself."""

    #: Real seconds of silence after which virtual time moves on; more than 0 for a backend that waits for a socket.
    autojump = 0.0

    def open(self, limits: RateLimits, clock: ManualClock, scope: str = "") -> Limiter:
        """Return a limiter for one more sender on the account, whose requests have that scope in common."""
        raise NotImplementedError

    def run(self, test: Callable[[ManualClock], Coroutine[Any, Any, None]]) -> None:
        """Run ``test`` on a virtual clock."""
        clock = ManualClock(start=1_000_000.0, autojump=self.autojump)
        asyncio.run(test(clock))
