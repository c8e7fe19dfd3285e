"""Callers in the order in which they came, of whom the first asks the backend for as many as can be served at once.

One call at a time and many callers a call: a backend at the other end of a network is asked seldom and never limits how
much can be sent. While nothing can be had, only the first caller looks again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

from airflow_llm_provider.engine.limits.bucket import Grant, Later
from airflow_llm_provider.engine.limits.state import UNLIMITED

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from airflow_llm_provider.engine.clock import Clock
    from airflow_llm_provider.engine.limiter import Cost
    from airflow_llm_provider.engine.limits.bucket import Answer

#: Callers that are asked for at once.
_BATCH = 32
#: Seconds after which the first caller looks again whether others gave something back.
_LOOK_AGAIN = 0.25
#: The shortest sleep, in seconds.
_SHORTEST = 0.001


class _Caller:
    __slots__ = ("cost", "served")

    def __init__(self, cost: Cost) -> None:
        self.cost = cost
        #: The answer; ``None``: it is this caller's turn to ask.
        self.served: asyncio.Future[Answer | None] = asyncio.get_running_loop().create_future()


class CallerQueue:
    """Serves callers in their order.

    :param take: asks the backend for several costs within a horizon of seconds; answers in their order, none after
        the first that has to wait.
    :param give_back: undoes a grant whose caller is gone.
    :param horizon: seconds ahead for which capacity is taken.
    :param patience: seconds after which the first caller takes capacity however far ahead: a request that is large
        against the limit would otherwise never find enough at once, while smaller ones of other senders do.
    """

    def __init__(
        self,
        take: Callable[[Sequence[Cost], float], Awaitable[Sequence[Answer]]],
        give_back: Callable[[Grant], Awaitable[None]],
        *,
        clock: Clock,
        horizon: float,
        patience: float,
    ) -> None:
        self._take = take
        self._give_back = give_back
        self._clock = clock
        self._horizon = horizon
        self._patience = patience
        self._waiting: deque[_Caller] = deque()
        self._led = False

    async def get(self, cost: Cost) -> Answer:
        """Wait for this caller's turn and return its answer: a grant, a reason why never, or the end of a pause."""
        caller = _Caller(cost)
        if self._led:
            self._waiting.append(caller)
            answer = await self._served(caller)
            if answer is not None:
                return answer
        self._led = True
        try:
            return await self._lead(caller)
        finally:
            self._pass_on()

    async def _served(self, caller: _Caller) -> Answer | None:
        try:
            return await caller.served
        except asyncio.CancelledError:
            if not caller.served.cancelled():  # served at the very moment at which it was cancelled
                answer = caller.served.result()
                if answer is None:
                    self._pass_on()
                elif isinstance(answer, Grant):
                    await self._give_back(answer)
            raise

    async def _lead(self, caller: _Caller) -> Answer:
        """Ask for this caller and those behind it until this one is served."""
        patient_until = self._clock.monotonic() + self._patience
        while True:
            patient = self._clock.monotonic() < patient_until
            others = (
                [other for other in islice(self._waiting, _BATCH) if not other.served.done()]
                if patient
                else []
            )
            costs = [caller.cost, *(other.cost for other in others)]
            own, *answers = await self._take(costs, self._horizon if patient else UNLIMITED)
            for other, answer in zip(others, answers, strict=False):
                await self._deliver(other, answer)
            while self._waiting and self._waiting[0].served.done():
                self._waiting.popleft()
            if not isinstance(own, Later):
                return own
            if own.paused:
                for other in self._waiting:
                    await self._deliver(other, own)
                self._waiting.clear()
                return own
            rest = own.at - own.now - self._horizon / 2
            await self._clock.sleep(min(max(rest, _SHORTEST), _LOOK_AGAIN))

    async def _deliver(self, caller: _Caller, answer: Answer) -> None:
        if isinstance(answer, Later) and not answer.paused:
            return
        if not caller.served.done():
            caller.served.set_result(answer)
        elif isinstance(answer, Grant):
            await self._give_back(answer)

    def _pass_on(self) -> None:
        """Leave the lead to the next in the queue."""
        self._led = False
        while self._waiting:
            caller = self._waiting.popleft()
            if not caller.served.done():
                self._led = True
                caller.served.set_result(None)
                return
