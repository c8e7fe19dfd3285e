"""The way out: a request gets a route, passes its limiter and the gates, or waits, or is turned away."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_llm_provider.engine.call import CallError, FailureKind
from airflow_llm_provider.engine.events import AccountLost, Waiting, WaitReason
from airflow_llm_provider.engine.exchange import is_of_account
from airflow_llm_provider.engine.limiter import AccountHaltedError, Cost, CostExceedsLimitError
from airflow_llm_provider.engine.retry import asked_wait
from airflow_llm_provider.engine.terminal import halted_error
from airflow_llm_provider.errors import LLMError, LLMRetryableError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from airflow_llm_provider.engine.budget.gate import BudgetGate
    from airflow_llm_provider.engine.call import Request
    from airflow_llm_provider.engine.clock import Clock
    from airflow_llm_provider.engine.events import Event
    from airflow_llm_provider.engine.exchange import Exchange
    from airflow_llm_provider.engine.gate import Gate, Passage
    from airflow_llm_provider.engine.lane import Lane
    from airflow_llm_provider.engine.limiter import Reservation
    from airflow_llm_provider.engine.routing import Routing

#: Waits no longer than this are not worth another route, in seconds: a limiter spaces requests out by such.
_SHORT = 0.5


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that may go out now.

    :param request: as it is sent on this lane.
    """

    lane: Lane
    request: Request
    reservation: Reservation


class Admission:
    """Lets requests out one by one.

    The gates are asked last, when the request could go out at this moment: a breaker that opened while a request
    waited for capacity, or for the budget's book, still holds it back, and then both are given back. So does a pause that
    began while it waited for the book.

    :param gates: asked after those of the route.
    :param budget: asked before the gates, since its answer may take a while.
    """

    def __init__(
        self,
        routing: Routing,
        gates: Sequence[Gate],
        *,
        budget: BudgetGate | None = None,
        clock: Clock,
        max_wait: float | None,
        emit: Callable[[Event], None],
    ) -> None:
        self._routing = routing
        self._gates = tuple(gates)
        self._budget = budget
        self._clock = clock
        self._max_wait = max_wait
        self._emit = emit
        #: Seconds that requests, taken together, spent on their way through here.
        self.waited_seconds = 0.0

    async def is_trusted(self) -> bool:
        """Tell whether requests like ours were answered a moment ago, wherever the first ones may go."""
        return all([await lane.limiter.is_trusted() for lane in self._routing.first])

    async def admit(self, request: Request) -> Admitted:
        """Wait until ``request`` may go out.

        :raises CostExceedsLimitError: when it never may.
        :raises LLMError: when a gate ends the run, the wait is too long to hold pool slots for it, or somebody else
            on the account met a failure that everyone would meet.
        """
        cost = Cost(
            tokens=request.prompt_tokens + request.max_output_tokens, output_cap=request.max_output_tokens
        )
        began = self._clock.monotonic()
        too_small: dict[Lane, CostExceedsLimitError] = {}
        while True:
            lane = self._routing.pick(self._clock.monotonic(), too_small)
            if lane is None:
                raise next(reversed(too_small.values()), self._routing.final)
            lane.waiting += 1
            try:
                admitted = await self._try(lane, request, cost, too_small)
            except CostExceedsLimitError as error:
                too_small[lane] = error
                continue
            except AccountHaltedError as error:
                self.lose(lane, halted_error(error, account=lane.route.name))
                continue
            finally:
                lane.waiting -= 1
            if admitted is not None:
                self.waited_seconds += self._clock.monotonic() - began
                return admitted

    async def withdraw(self, admitted: Admitted) -> None:
        """Undo the admission of a request that was not sent after all."""
        now = self._clock.monotonic()
        for gate in (*admitted.lane.gates, *self._gates):
            gate.withdraw(admitted.request, now=now)
        if self._budget is not None:
            self._budget.withdraw(admitted.request, now=now)
        await admitted.lane.limiter.cancel(admitted.reservation)

    async def settle(self, exchange: Exchange, admitted: Admitted) -> None:
        """Tell the limiter how an admitted request ended; a pause that began with it is also that of its lane."""
        pause = await admitted.lane.exchanger.settle(exchange, admitted.reservation)
        if pause > 0:
            admitted.lane.cool(self._clock.monotonic() + pause, WaitReason.LIMIT)

    def wait_after(self, exchange: Exchange, wait: float | None) -> float | None:
        """Return how long a row is to wait by itself: not for its account's pause when there are other accounts.

        :raises LLMRetryableError: when the pause is too long to hold pool slots for it.
        """
        error = exchange.result
        if not wait or not isinstance(error, CallError) or error.kind is not FailureKind.RATE_LIMITED:
            return wait
        if self._routing.only is None:
            return 0.0
        self._check_wait(asked_wait(error) or 0.0)
        return wait

    def after_refusal(self, exchange: Exchange, lane: Lane, stop: LLMError) -> LLMError | None:
        """Return what ends the run; ``None``: only an account is lost, and the row may go out on another."""
        result = exchange.result
        if not isinstance(result, CallError) or not is_of_account(result):
            return stop
        try:
            self.lose(lane, stop)
        except LLMError as last:
            return last
        return None

    def lose(self, lane: Lane, error: LLMError) -> None:
        """Send nothing on ``lane`` any more.

        :raises LLMError: when no other is left.
        """
        known = lane.lost is not None
        left = self._routing.lose(lane, error)
        if left is not None:
            raise left
        if not known:
            self._emit(AccountLost(account=lane.route.name, reason=str(error)))

    async def _try(
        self, lane: Lane, request: Request, cost: Cost, too_small: Collection[Lane]
    ) -> Admitted | None:
        """Get the request out on ``lane``; ``None``: the choice of a lane is to be made anew."""
        sent = lane.as_sent(request)
        reservation = await lane.limiter.reserve(cost)
        if not reservation.wait and not lane.gates and not self._gates and self._budget is None:
            return Admitted(lane, sent, reservation)
        try:
            held = None
            if await self._await_capacity(lane, request, reservation, too_small) and lane.lost is None:
                held = await self._pass_budget(lane, sent, reservation, too_small)
        except BaseException:
            await lane.limiter.cancel(reservation)
            raise
        if held == 0:
            return Admitted(lane, sent, reservation)
        await lane.limiter.cancel(reservation)
        if held is not None:
            await self._wait(request, WaitReason.GATE, held)
        return None

    async def _await_capacity(
        self, lane: Lane, request: Request, reservation: Reservation, too_small: Collection[Lane]
    ) -> bool:
        """Wait until the limiter lets the request pass; return early, with False, when another lane would."""
        wait = reservation.wait
        while wait > 0:
            if wait > _SHORT:
                now = self._clock.monotonic()
                lane.cool(now + wait, WaitReason.LIMIT)
                if self._routing.has_other(lane, now, too_small):
                    return False
            self._check_wait(wait)
            await self._wait(request, WaitReason.LIMIT, wait)
            wait = await lane.limiter.recheck(reservation)
        return True

    def _check_wait(self, wait: float) -> None:
        if self._max_wait is not None and wait > self._max_wait:
            raise LLMRetryableError(
                f"The account's limits hold back requests for {wait:.0f} s, longer than the {self._max_wait:.0f} s that "
                "are waited for. Run again later: every answer so far is kept.",
                retry_after=wait,
            )

    async def _pass_budget(
        self, lane: Lane, request: Request, reservation: Reservation, too_small: Collection[Lane]
    ) -> float | None:
        """Do as :meth:`_pass_gates`, within the budget."""
        budget = self._budget
        if budget is None:
            return self._pass_gates(lane, request, too_small)
        passage = await budget.admit(request, now=self._clock.monotonic())
        if passage.wait or passage.stop is not None:
            return self._held_for_all(lane, passage, too_small)
        held = None
        try:
            if not await lane.limiter.recheck(reservation) and lane.lost is None:
                held = self._pass_gates(lane, request, too_small)
            return held
        finally:
            if held != 0:
                budget.withdraw(request, now=self._clock.monotonic())

    def _pass_gates(self, lane: Lane, request: Request, too_small: Collection[Lane]) -> float | None:
        """Return 0 when every gate lets the request pass, else how long to wait; ``None``: try another lane."""
        now = self._clock.monotonic()
        passed: list[Gate] = []
        for gate in (*lane.gates, *self._gates):
            passage = gate.admit(request, now=now)
            if passage.stop is None and not passage.wait:
                passed.append(gate)
                continue
            for earlier in passed:
                earlier.withdraw(request, now=now)
            if len(passed) < len(lane.gates):
                return self._held_by_lane(lane, passage, now, too_small)
            return self._held_for_all(lane, passage, too_small)
        return 0.0

    def _held_for_all(self, lane: Lane, passage: Passage, too_small: Collection[Lane]) -> float | None:
        """Act on what is the same on every lane; return how long to wait, ``None``: try another lane."""
        if self._routing.avoids(lane, too_small):
            return None
        if passage.stop is not None:
            raise passage.stop
        return passage.wait

    def _held_by_lane(
        self, lane: Lane, passage: Passage, now: float, too_small: Collection[Lane]
    ) -> float | None:
        """Act on what a lane's own gate said; return how long to wait, ``None``: try another lane."""
        if passage.stop is not None:
            self.lose(lane, passage.stop)
            return None
        lane.cool(now + passage.wait, WaitReason.GATE)
        return None if self._routing.has_other(lane, now, too_small) else passage.wait

    async def _wait(self, request: Request, reason: WaitReason, seconds: float) -> None:
        self._emit(Waiting(index=request.index, reason=reason, seconds=seconds))
        await self._clock.sleep(seconds)
