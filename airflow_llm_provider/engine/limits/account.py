"""The limiter of one account and model: the bucket, shared through a backend, with a queue of its own."""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING

from airflow_llm_provider.engine.call import FailureKind
from airflow_llm_provider.engine.clock import Clock, SystemClock
from airflow_llm_provider.engine.limiter import (
    AccountHaltedError,
    Cost,
    CostExceedsLimitError,
    Reservation,
)
from airflow_llm_provider.engine.limits.backend import LocalBackend, MemoryStore
from airflow_llm_provider.engine.limits.bucket import KINDS, TRUST, Grant, Halted, Later, TooLarge
from airflow_llm_provider.engine.limits.hints import AnsweredLately, per_minute
from airflow_llm_provider.engine.limits.output import OutputLength
from airflow_llm_provider.engine.limits.queue import CallerQueue
from airflow_llm_provider.engine.limits.rate_limits import RateLimits
from airflow_llm_provider.engine.limits.state import SLOTS, UNLIMITED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_llm_provider.engine.call import RateHint
    from airflow_llm_provider.engine.limits.backend import Backend
    from airflow_llm_provider.engine.limits.bucket import Answer

#: Seconds ahead for which capacity is taken: long enough to hide a late timer, short enough that little is lost with
#: a sender that dies, and that capacity given back meanwhile is not missed.
_HORIZON = 0.25
#: The same as a share of a short window.
_HORIZON_SHARE = 1 / 64
#: Share of the window after which the first in the queue takes capacity however far ahead.
_PATIENCE_SHARE = 0.25
#: Slot of a request that nobody named: older than any, so that only the limits count of what was said about it.
_UNKNOWN_SLOT = -1
#: Seconds between two answers that are noted for others, a part of the time for which they vouch.
_TRUST_SECONDS = TRUST / 10
#: A rest of waiting that is not worth a timer, in seconds.
_NEGLIGIBLE = 0.001
#: Failures that stop everyone, by the numbers that they are shared as.
_HALTS = (FailureKind.CONFIGURATION, FailureKind.QUOTA, FailureKind.AUTHENTICATION)
#: Above the kind, a halt's number says whom it is for: 0 for everyone, else a hash of the scope in this many bytes, so
#: that all of it is a whole number that a double holds.
_SCOPE_BYTES = 5


class _Ticket:
    """What a reservation holds at the moment."""

    __slots__ = ("grant", "last")

    def __init__(self) -> None:
        self.grant: Grant | None = None
        # Kept after the grant is settled: the endpoint's words about the request come later.
        self.last: Grant | None = None


class AccountLimiter:
    """Implements :class:`~airflow_llm_provider.engine.limiter.Limiter` on any backend.

    Callers of one limiter queue in the order in which they came; the first in the queue asks the backend. During a
    pause nobody holds capacity: :meth:`reserve` returns the rest of the pause, and :meth:`recheck` takes it then.

    :param backend: where the state is shared; by default, by whoever uses this very object.
    :param limits: what is known of the limits.
    :param scope: names what the requests have in common, such as their spec: who has another one does not care when
        a parameter of these is refused.
    """

    def __init__(
        self,
        backend: Backend | None = None,
        *,
        limits: RateLimits | None = None,
        clock: Clock | None = None,
        scope: str = "",
    ) -> None:
        self._limits = limits or RateLimits()
        self._terms = self._limits.terms
        self._clock = clock or SystemClock()
        self._backend = backend or LocalBackend(
            MemoryStore(window=self._terms.window, now=self._clock.monotonic()),
            window=self._terms.window,
            clock=self._clock,
        )
        self._output = OutputLength()
        self._answered = AnsweredLately(self._terms.window)
        self._since = UNLIMITED
        self._scope = _scope_number(scope)
        # When we last noted an answer; None: ours vouch for nobody.
        self._trusted_at: float | None = -math.inf
        self._queue = CallerQueue(
            self._take,
            self._backend.give_back,
            clock=self._clock,
            horizon=min(_HORIZON, _HORIZON_SHARE * self._terms.window),
            patience=_PATIENCE_SHARE * self._terms.window,
        )

    async def reserve(self, cost: Cost) -> Reservation:
        """Wait for this caller's turn, take ``cost`` and say how long to wait before sending."""
        ticket = _Ticket()
        wait = await self._fund(ticket, cost)
        return Reservation(cost=cost, wait=wait, token=ticket)

    async def recheck(self, reservation: Reservation) -> float:
        """Return how many more seconds to wait; gives up capacity that a pause has overtaken, and takes new."""
        ticket = _ticket(reservation)
        grant = ticket.grant
        if grant is not None:
            if not await self._backend.overtaken(grant):
                return await self._rest(ticket, grant)
            await self.cancel(reservation)
        return await self._fund(ticket, reservation.cost)

    async def settle(self, reservation: Reservation, used: Cost) -> None:
        """Replace the reserved cost by the real one.

        :param used: a cost that still has an ``output_cap`` says nothing of tokens: what is reserved stays.
        """
        ticket = _ticket(reservation)
        grant, ticket.grant = ticket.grant, None
        if grant is None:
            return
        self._output.ended()
        requests = float(used.requests - 1)
        if requests > 0:
            # The client had to find out how the endpoint wants them, and so has the next: better by one request alone.
            self._trusted_at = None
        if used.output_cap:
            if requests:
                await self._backend.settle(grant.slot, requests, 0.0)
            return
        cost = reservation.cost
        if used.tokens:
            self._answered.add(used.tokens, self._clock.monotonic())
            self._output.learn(used.tokens - (cost.tokens - cost.output_cap))
            await self._trust(grant)
        tokens = used.tokens - grant.tokens
        if self._limits.reserve == "cap" and used.tokens:
            tokens = max(0.0, tokens)
        if tokens or requests:
            await self._backend.settle(grant.slot, requests, tokens)

    async def cancel(self, reservation: Reservation) -> None:
        """Give back what was taken for a request that never went out."""
        ticket = _ticket(reservation)
        grant, ticket.grant = ticket.grant, None
        if grant is not None:
            self._output.ended()
            await self._backend.give_back(grant)

    async def pause(self, seconds: float, *, reservation: Reservation | None = None) -> None:
        """Hold back everyone for ``seconds`` and learn what rate the account takes."""
        last = None if reservation is None else _ticket(reservation).last
        await self._backend.refuse(self._terms, granted_at=None if last is None else last.at, seconds=seconds)

    async def observe(self, rate: RateHint, *, reservation: Reservation | None = None) -> None:
        """Take in the endpoint's limits and what it has left, when limits are to be learned."""
        if not self._limits.auto:
            return
        last = None if reservation is None else _ticket(reservation).last
        believed = self._answered.believable(per_minute(rate, window=self._terms.window))
        await self._backend.observe(_UNKNOWN_SLOT if last is None else last.slot, believed)

    async def halt(self, kind: FailureKind, *, own: bool = False) -> None:
        """Stop everyone who sends on this account now; whoever begins later finds out anew."""
        await self._backend.halt(_HALTS.index(kind) + KINDS * (self._scope if own else 0))

    async def is_trusted(self) -> bool:
        """Tell whether a request of this scope was answered a moment ago, whoever sent it."""
        return await self._backend.is_trusted(self._scope)

    async def aclose(self) -> None:
        """Hand over what is not yet written and close connections."""
        await self._backend.aclose()

    async def _trust(self, grant: Grant) -> None:
        """Note for others that requests like ours are answered, now and then."""
        if self._trusted_at is None:
            return
        now = self._clock.monotonic()
        if now - self._trusted_at >= _TRUST_SECONDS:
            self._trusted_at = now
            await self._backend.trust(self._scope, grant)

    async def _fund(self, ticket: _Ticket, cost: Cost) -> float:
        """Take capacity for the ticket and return the wait; without capacity when a pause is the reason."""
        answer = await self._queue.get(cost)
        if isinstance(answer, Later):
            return answer.at - answer.now
        grant = _granted(answer, self._least(cost))
        self._since = min(self._since, grant.made)
        ticket.grant = ticket.last = grant
        self._output.sent()
        return await self._rest(ticket, grant)

    async def _rest(self, ticket: _Ticket, grant: Grant) -> float:
        """Return the seconds until the request may go out; one that is late already is written down as such."""
        now = self._backend.now()
        if now > grant.at + self._terms.window / SLOTS:
            ticket.grant = ticket.last = await self._backend.delay(grant, now)
        rest = grant.at - now
        return rest if rest > _NEGLIGIBLE else 0.0

    async def _take(self, costs: Sequence[Cost], horizon: float) -> Sequence[Answer]:
        wanted = [(self._tokens(cost), self._refusable(cost)) for cost in costs]
        while True:
            answers = await self._backend.take(self._terms, wanted, horizon=horizon, since=self._since)
            halt = next((answer for answer in answers if isinstance(answer, Halted)), None)
            if halt is None or halt.kind // KINDS in {0, self._scope}:
                return answers
            # Somebody else's parameter was refused: nothing to us. Nothing was taken, so ask again as if it came later.
            self._since = math.nextafter(halt.at, math.inf)

    def _tokens(self, cost: Cost) -> float:
        if self._limits.reserve == "cap":
            return cost.tokens
        return cost.tokens - cost.output_cap + self._output.expected(cost.output_cap)

    def _refusable(self, cost: Cost) -> float:
        """Return what a request takes for certain, if that is beyond the limit that we were given; else 0.

        One that is only beyond what the endpoint states goes out when all of that is free: the endpoint knows whether it
        means it.
        """
        least = self._least(cost)
        return least if least > self._terms.max_tokens else 0.0

    def _least(self, cost: Cost) -> float:
        return cost.tokens if self._limits.reserve == "cap" else cost.tokens - cost.output_cap


def _granted(answer: Answer, least: float) -> Grant:
    if isinstance(answer, Halted):
        raise AccountHaltedError(_HALTS[answer.kind % KINDS])
    if isinstance(answer, TooLarge):
        raise CostExceedsLimitError(
            "request_exceeds_tpm",
            f"The request takes at least {least:.0f} tokens of a limit of {answer.max_tokens:.0f} a window, so it can "
            "never be sent: shorten it, or raise tokens_per_minute of the connection",
        )
    assert isinstance(answer, Grant)  # noqa: S101 -- nothing else is left
    return answer


def _scope_number(scope: str) -> int:
    digest = hashlib.blake2b(scope.encode("utf-8", "surrogatepass"), digest_size=_SCOPE_BYTES).digest()
    return 1 + int.from_bytes(digest, "big")


def _ticket(reservation: Reservation) -> _Ticket:
    ticket = reservation.token
    if not isinstance(ticket, _Ticket):
        raise TypeError(
            f"this reservation was made by another limiter: its token is a {type(ticket).__name__}"
        )
    return ticket
