import asyncio

import pytest

from airflow_llm_provider.engine.limiter import Cost
from airflow_llm_provider.engine.limits.bucket import Grant, Later, TooLarge
from airflow_llm_provider.engine.limits.queue import CallerQueue
from airflow_llm_provider.testing.clock import ManualClock


class Backend:
    """Grants as many as it has; each call takes a while."""

    def __init__(self, clock, *, has=10**9, seconds=0.1):
        self.clock, self.has, self.seconds = clock, has, seconds
        self.calls, self.given_back, self.horizons, self.paused = [], [], [], None
        self.fail = None
        self.before_return = lambda: None

    async def take(self, costs, horizon):
        self.calls.append([cost.tokens for cost in costs])
        self.horizons.append(horizon)
        if self.seconds:
            await self.clock.sleep(self.seconds)
        if self.fail is not None:
            raise self.fail
        self.before_return()
        now, answers = self.clock.monotonic(), []
        for cost in costs:
            if self.paused is not None:
                return [*answers, Later(self.paused, now, paused=True)]
            if cost.tokens > 1000:
                answers.append(TooLarge(1000))
            elif self.has:
                self.has -= 1
                answers.append(Grant(now, 0, cost.tokens, now))
            else:
                return [*answers, Later(now + 1, now, paused=False)]
        return answers

    async def give_back(self, grant):
        self.given_back.append(grant.tokens)


@pytest.fixture
def clock():
    return ManualClock()


def queue_on(backend, **options):
    return CallerQueue(
        backend.take, backend.give_back, clock=backend.clock, **{"horizon": 0.2, "patience": 5.0, **options}
    )


def tokens(answer):
    return answer.tokens


class TestGet:
    def test_asks_for_all_who_wait_at_once_and_serves_them_in_order(self, clock):
        backend, order = Backend(clock), []

        async def caller(queue, number):
            order.append(tokens(await queue.get(Cost(tokens=number))))

        async def test():
            queue = queue_on(backend)
            await asyncio.gather(*(caller(queue, number) for number in range(50)))

        asyncio.run(test())
        assert order == list(range(50))
        assert [len(call) for call in backend.calls] == [1, 33, 16]

    def test_only_the_first_looks_again(self, clock):
        backend = Backend(clock, has=1, seconds=0)

        async def test():
            queue = queue_on(backend)
            callers = [asyncio.create_task(queue.get(Cost(tokens=number))) for number in range(3)]
            await clock.sleep(0.6)
            backend.has = 10
            assert [tokens(await caller) for caller in callers] == [0, 1, 2]

        asyncio.run(test())
        assert 3 <= len(backend.calls) <= 8

    def test_a_request_that_never_fits_does_not_hold_up_the_others(self, clock):
        backend = Backend(clock)

        async def test():
            queue = queue_on(backend)
            answers = await asyncio.gather(*(queue.get(Cost(tokens=size)) for size in (1, 5000, 2)))
            assert [type(answer) for answer in answers] == [Grant, TooLarge, Grant]

        asyncio.run(test())

    def test_a_pause_is_told_to_everyone_at_once(self, clock):
        backend = Backend(clock)
        backend.paused = 100.0

        async def test():
            queue = queue_on(backend)
            answers = await asyncio.gather(*(queue.get(Cost(tokens=number)) for number in range(5)))
            assert {(answer.at, answer.paused) for answer in answers} == {(100.0, True)}

        asyncio.run(test())
        assert len(backend.calls) == 1

    def test_after_some_patience_the_first_takes_capacity_however_far_ahead(self, clock):
        backend = Backend(clock, has=0)

        async def test():
            queue = queue_on(backend, patience=2.0)
            caller = asyncio.create_task(queue.get(Cost(tokens=1)))
            await clock.sleep(3.0)
            caller.cancel()
            await asyncio.wait([caller])

        asyncio.run(test())
        assert backend.horizons[0] == 0.2
        assert backend.horizons[-1] > 1e9


class TestCancellation:
    def test_one_in_the_queue_is_skipped(self, clock):
        backend = Backend(clock)

        async def test():
            queue = queue_on(backend)
            callers = [asyncio.create_task(queue.get(Cost(tokens=number))) for number in range(4)]
            await asyncio.sleep(0)
            callers[1].cancel()
            callers[2].cancel()
            assert tokens(await callers[3]) == 3
            await asyncio.wait(callers)

        asyncio.run(test())
        assert backend.calls == [[0], [3]]

    def test_one_that_was_asked_for_already_gives_back(self, clock):
        backend = Backend(clock)

        async def test():
            queue = queue_on(backend)
            callers = [asyncio.create_task(queue.get(Cost(tokens=number))) for number in range(3)]
            await clock.sleep(0.15)  # the first is served, the second asks for itself and the third
            callers[2].cancel()
            await asyncio.wait(callers)

        asyncio.run(test())
        assert backend.given_back == [2]

    @pytest.mark.parametrize("leads", [False, True])
    def test_one_that_is_served_at_that_very_moment_gives_back_or_leaves_its_turn(self, clock, leads):
        backend = Backend(clock)

        async def test():
            queue = queue_on(backend)
            callers = [asyncio.create_task(queue.get(Cost(tokens=number))) for number in range(4)]
            victim = callers[1 if leads else 2]

            def cancel_soon():  # runs after the answer was set and before its caller wakes up
                if len(backend.calls) == (1 if leads else 2):
                    asyncio.get_running_loop().call_soon(victim.cancel)

            backend.before_return = cancel_soon
            await asyncio.wait(callers)
            assert victim.cancelled()
            assert [caller.cancelled() for caller in callers].count(True) == 1

        asyncio.run(test())
        assert backend.given_back == ([] if leads else [2])

    @pytest.mark.parametrize("moment", [0.0, 0.05, 0.1, 0.15])
    def test_the_first_leaves_its_turn_to_the_next(self, clock, moment):
        backend = Backend(clock)

        async def test():
            queue = queue_on(backend)
            callers = [asyncio.create_task(queue.get(Cost(tokens=number))) for number in range(3)]
            await clock.sleep(moment)
            callers[0].cancel()
            assert [tokens(answer) for answer in await asyncio.gather(*callers[1:])] == [1, 2]

        asyncio.run(test())

    def test_of_everyone_leaves_a_queue_that_works(self, clock):
        backend = Backend(clock)

        async def test():
            queue = queue_on(backend)
            for step in range(30):
                callers = [asyncio.create_task(queue.get(Cost(tokens=number))) for number in range(5)]
                await clock.sleep(step / 100)
                for caller in callers[:: 1 + step % 3]:
                    caller.cancel()
                await asyncio.wait(callers)
            assert tokens(await queue.get(Cost(tokens=7))) == 7

        asyncio.run(test())


class TestFailure:
    def test_of_the_backend_is_met_by_everyone_in_turn(self, clock):
        backend = Backend(clock)
        backend.fail = OSError("gone")

        async def test():
            queue = queue_on(backend)
            answers = await asyncio.gather(
                *(queue.get(Cost(tokens=number)) for number in range(3)), return_exceptions=True
            )
            assert answers == [backend.fail] * 3
            backend.fail = None
            assert tokens(await queue.get(Cost(tokens=7))) == 7

        asyncio.run(test())
