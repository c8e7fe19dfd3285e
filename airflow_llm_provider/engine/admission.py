"""The way out: a request passes the limiter and the gates, or waits, or is turned away."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_llm_provider.engine.events import Waiting, WaitReason
from airflow_llm_provider.engine.limiter import AccountHaltedError, Cost
from airflow_llm_provider.engine.terminal import halted_error
from airflow_llm_provider.errors import LLMRetryableError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_llm_provider.engine.call import Request
    from airflow_llm_provider.engine.clock import Clock
    from airflow_llm_provider.engine.events import Event
    from airflow_llm_provider.engine.gate import Gate
    from airflow_llm_provider.engine.limiter import Limiter, Reservation


class Admission:
    """Lets requests out one by one.

    The gates are asked last, when the request could go out at this moment: a breaker that opened while a request
    waited for capacity still holds it back, and then the capacity is given back.
    """

    def __init__(
        self,
        limiter: Limiter,
        gates: Sequence[Gate],
        *,
        clock: Clock,
        max_wait: float | None,
        emit: Callable[[Event], None],
    ) -> None:
        self._limiter = limiter
        self._gates = tuple(gates)
        self._clock = clock
        self._max_wait = max_wait
        self._emit = emit

    async def admit(self, request: Request) -> Reservation:
        """Wait until ``request`` may go out.

        :raises CostExceedsLimitError: when it never may.
        :raises LLMError: when a gate ends the run, the wait is too long to hold pool slots for it, or somebody else
            on the account met a failure that everyone would meet.
        """
        try:
            return await self._admit(request)
        except AccountHaltedError as error:
            raise halted_error(error) from error

    async def withdraw(self, request: Request, reservation: Reservation) -> None:
        """Undo the admission of a request that was not sent after all."""
        now = self._clock.monotonic()
        for gate in self._gates:
            gate.withdraw(request, now=now)
        await self._limiter.cancel(reservation)

    async def _admit(self, request: Request) -> Reservation:
        cost = Cost(
            tokens=request.prompt_tokens + request.max_output_tokens, output_cap=request.max_output_tokens
        )
        while True:
            reservation = await self._limiter.reserve(cost)
            if not reservation.wait and not self._gates:
                return reservation
            try:
                await self._await_capacity(request, reservation)
                held = self._pass_gates(request)
            except BaseException:
                await self._limiter.cancel(reservation)
                raise
            if not held:
                return reservation
            await self._limiter.cancel(reservation)
            await self._wait(request, WaitReason.GATE, held)

    async def _await_capacity(self, request: Request, reservation: Reservation) -> None:
        wait = reservation.wait
        while wait > 0:
            if self._max_wait is not None and wait > self._max_wait:
                raise LLMRetryableError(
                    f"The account's limits hold back requests for {wait:.0f} s, longer than max_limit_wait "
                    f"({self._max_wait:.0f} s). Run again later: every answer so far is kept.",
                    retry_after=wait,
                )
            await self._wait(request, WaitReason.LIMIT, wait)
            wait = await self._limiter.recheck(reservation)

    def _pass_gates(self, request: Request) -> float:
        """Return 0 when every gate lets the request pass, else how long to wait."""
        now = self._clock.monotonic()
        for position, gate in enumerate(self._gates):
            passage = gate.admit(request, now=now)
            if passage.stop is None and not passage.wait:
                continue
            for passed in self._gates[:position]:
                passed.withdraw(request, now=now)
            if passage.stop is not None:
                raise passage.stop
            return passage.wait
        return 0.0

    async def _wait(self, request: Request, reason: WaitReason, seconds: float) -> None:
        self._emit(Waiting(index=request.index, reason=reason, seconds=seconds))
        await self._clock.sleep(seconds)
