"""Without a limit of its own, a pause still holds back everyone."""

from __future__ import annotations

import asyncio
import random

from airflow_llm_provider.engine.limiter import Cost, Unlimited
from airflow_llm_provider.testing.clock import ManualClock


class TestUnlimited:
    def make(self, **options):
        self.clock = ManualClock()
        return Unlimited(clock=self.clock, rng=random.Random(0), **options)

    def wait(self, limiter):
        return asyncio.run(limiter.reserve(Cost())).wait

    def test_nobody_waits(self):
        assert self.wait(self.make()) == 0

    def test_C8_a_pause_holds_back_everyone_and_lets_them_start_spread_out(self):
        limiter = self.make()
        asyncio.run(limiter.pause(10))
        waits = [self.wait(limiter) for _ in range(50)]
        assert min(waits) >= 10
        assert max(waits) <= 12
        assert max(waits) - min(waits) > 1

    def test_a_pause_ends_by_itself(self):
        limiter = self.make(ramp=False)
        asyncio.run(limiter.pause(10))
        self.clock.jump(4)
        assert self.wait(limiter) == 6
        self.clock.jump(6)
        assert self.wait(limiter) == 0

    def test_a_shorter_pause_never_cuts_a_longer_one(self):
        limiter = self.make(ramp=False)
        asyncio.run(limiter.pause(10))
        asyncio.run(limiter.pause(1))
        asyncio.run(limiter.pause(0))
        assert self.wait(limiter) == 10

    def test_who_waited_already_hears_of_a_pause_that_began_meanwhile(self):
        limiter = self.make(ramp=False)

        async def main():
            reservation = await limiter.reserve(Cost())
            await limiter.pause(3)
            assert await limiter.recheck(reservation) == 3
            self.clock.jump(3)
            assert await limiter.recheck(reservation) == 0

        asyncio.run(main())
