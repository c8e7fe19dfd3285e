"""Virtual time must be exact, ordered and honest about what it does not control."""

from __future__ import annotations

import asyncio
import socket

import pytest

from airflow_llm_provider.testing.clock import ManualClock


class TestManualClock:
    @pytest.mark.timeout(60)
    def test_an_hour_of_sleep_takes_no_time(self):
        clock = ManualClock()
        asyncio.run(clock.sleep(3600))
        assert clock.monotonic() == 3600
        assert clock.time() == 1_700_000_000 + 3600

    def test_sleepers_wake_in_the_order_of_their_deadlines(self):
        clock = ManualClock()
        woken: list[tuple[float, str]] = []

        async def sleeper(name, seconds):
            await clock.sleep(seconds)
            woken.append((clock.monotonic(), name))

        async def main():
            await asyncio.gather(sleeper("c", 3), sleeper("a", 1), sleeper("b", 2), sleeper("a2", 1))

        asyncio.run(main())
        assert woken == [(1, "a"), (1, "a2"), (2, "b"), (3, "c")]

    def test_time_stands_still_while_any_task_can_run(self):
        clock = ManualClock()

        async def main():
            sleeper = asyncio.create_task(clock.sleep(5))
            for _ in range(1000):
                await asyncio.sleep(0)
                assert clock.monotonic() == 0
            await sleeper

        asyncio.run(main())
        assert clock.monotonic() == 5

    def test_a_chain_of_sleeps_adds_up(self):
        clock = ManualClock(start=10)

        async def main():
            for _ in range(500):
                await clock.sleep(0.5)

        asyncio.run(main())
        assert clock.monotonic() == 260
        assert clock.slept == 250

    def test_a_cancelled_sleep_moves_nothing(self):
        clock = ManualClock()

        async def main():
            long = asyncio.create_task(clock.sleep(100))
            await clock.sleep(1)
            long.cancel()
            await asyncio.gather(long, return_exceptions=True)
            await clock.sleep(1)

        asyncio.run(main())
        assert clock.monotonic() == 2
        assert clock.sleepers == 0

    def test_without_autojump_only_jump_moves_time(self):
        clock = ManualClock(autojump=None)

        async def main():
            sleeper = asyncio.create_task(clock.sleep(2))
            for _ in range(10):
                await asyncio.sleep(0)
            assert not sleeper.done()
            clock.jump(1.5)
            await asyncio.sleep(0)
            assert not sleeper.done()
            clock.jump(0.5)
            await sleeper

        asyncio.run(main())
        assert clock.monotonic() == 2

    def test_a_jump_back_is_refused(self):
        with pytest.raises(ValueError, match="does not go back"):
            ManualClock().jump(-1)

    def test_a_zero_sleep_only_lets_others_run(self):
        clock = ManualClock()
        asyncio.run(clock.sleep(0))
        asyncio.run(clock.sleep(-1))
        assert clock.monotonic() == 0

    def test_a_later_loop_can_use_the_same_clock(self):
        clock = ManualClock()

        async def abandoned():
            asyncio.get_running_loop().create_task(clock.sleep(1000))
            await asyncio.sleep(0)

        asyncio.run(abandoned())
        asyncio.run(clock.sleep(1))
        assert clock.monotonic() == 1

    def test_with_a_threshold_threads_finish_before_time_jumps(self):
        clock = ManualClock(autojump=0.05)
        seen: list[float] = []

        async def main():
            loop = asyncio.get_running_loop()
            now = loop.time()
            # Real time stands still until the thread is over, however late it gets its turn.
            loop.time = lambda: now
            sleeper = asyncio.create_task(clock.sleep(60))
            await asyncio.to_thread(lambda: None)
            seen.append(clock.monotonic())
            del loop.time
            await sleeper

        asyncio.run(main())
        assert seen == [0]
        assert clock.monotonic() == 60

    def test_input_that_has_arrived_is_read_before_time_jumps(self):
        clock = ManualClock()
        seen: list[float] = []

        async def main():
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            with ours, theirs:
                sleeper = asyncio.create_task(clock.sleep(9))
                reader = asyncio.create_task(asyncio.get_running_loop().sock_recv(ours, 1))
                await asyncio.sleep(0)
                theirs.send(b"x")
                await reader
                seen.append(clock.monotonic())
                await sleeper

        asyncio.run(main())
        assert seen == [0]
        assert clock.monotonic() == 9
