"""One request out, one result in, and what everyone else learns from it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from airflow_llm_provider.engine.call import TERMINAL_KINDS, CallError, FailureKind, Reply
from airflow_llm_provider.engine.events import AttemptFinished, AttemptStarted, Paused
from airflow_llm_provider.engine.limiter import Cost
from airflow_llm_provider.engine.value import value
from airflow_llm_provider.engine.verdict import Verdict, verdict_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_llm_provider.engine.call import ModelClient, Request
    from airflow_llm_provider.engine.clock import Clock
    from airflow_llm_provider.engine.cooldown import Cooldown
    from airflow_llm_provider.engine.events import Event
    from airflow_llm_provider.engine.gate import Counter
    from airflow_llm_provider.engine.limiter import Limiter, Reservation

#: Failures after which the endpoint has certainly not spent tokens: it answered, and its answer was no.
_NO_TOKENS_SPENT = TERMINAL_KINDS | {FailureKind.ROW, FailureKind.RATE_LIMITED}
#: What tells of a model or a URL that nobody finds, whatever the request says otherwise.
_NOWHERE = frozenset({404, 405, 410})
_NO_MODEL = frozenset(
    {"deploymentnotfound", "invalid_model", "model_not_available", "model_not_found", "unknown_url"}
)
#: How a request's own parameters are refused.
_BAD_REQUEST = frozenset({400, 422})
#: Code of a failure that is the client's own.
CLIENT_BUG = "client_bug"


@value
class Exchange:
    """One attempt at a row, over.

    :param request: as it was sent.
    :param sent_at: monotonic seconds, as is ``ended_at``.
    """

    request: Request
    attempt: int
    result: Reply | CallError
    sent_at: float
    ended_at: float


class Exchanger:
    """Sends requests on one route, and tells limiter, gates and observers how they went.

    :param account: name of the route's account.
    """

    def __init__(
        self,
        client: ModelClient,
        *,
        limiter: Limiter,
        gates: Sequence[Counter],
        cooldown: Cooldown,
        clock: Clock,
        timeout: float,
        emit: Callable[[Event], None] | None,
        account: str | None = None,
    ) -> None:
        self._client = client
        self._limiter = limiter
        self._gates = tuple(gates)
        self._cooldown = cooldown
        self._clock = clock
        self._timeout = timeout
        self._emit = emit
        self._account = account
        self._reports = emit is not None or bool(self._gates)

    async def send(self, request: Request, attempt: int) -> Exchange:
        """Send ``request`` and return what came of it; every failure of the client is a result.

        :raises asyncio.CancelledError: when this task is cancelled.
        """
        if self._emit is not None:
            self._emit(AttemptStarted(index=request.index, attempt=attempt))
        sent_at = self._clock.monotonic()
        result: Reply | CallError
        try:
            result = await self._client.complete(request.body, timeout=self._timeout)
        except CallError as error:
            result = error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                self._abandon(request, attempt, sent_at)
                raise
            # Nobody cancelled this task, so it was the client that lost a connection or a task of its own.
            result = _caused(FailureKind.CONNECTION, "cancelled", "The client cancelled its own call", error)
        except Exception as error:  # noqa: BLE001 -- whatever a client raises must not take other rows along
            result = _caused(
                FailureKind.BAD_RESPONSE, CLIENT_BUG, f"The client raised {type(error).__name__}", error
            )
        return Exchange(
            request=request,
            attempt=attempt,
            result=result,
            sent_at=sent_at,
            ended_at=self._clock.monotonic(),
        )

    def announce(self, exchange: Exchange, cost_usd: float | None) -> None:
        """Tell gates and observers how the exchange ended."""
        if not self._reports:
            return
        result = exchange.result
        error = result if isinstance(result, CallError) else None
        event = AttemptFinished(
            index=exchange.request.index,
            attempt=exchange.attempt,
            verdict=verdict_of(result),
            kind=None if error is None else error.kind,
            code=None if error is None else error.code,
            status_code=None if error is None else error.status_code,
            latency=exchange.ended_at - exchange.sent_at,
            usage=result.usage if isinstance(result, Reply) else None,
            cost_usd=cost_usd,
            rate=result.rate,
            message=None if error is None else str(error),
        )
        for gate in self._gates:
            gate.settle(exchange.request, event, now=exchange.ended_at)
        if self._emit is not None:
            self._emit(event)

    async def settle(self, exchange: Exchange, reservation: Reservation) -> float:
        """Correct what was reserved, and pass on what the endpoint said about its limits.

        :returns: seconds of a pause that began with this exchange; 0: none did.
        """
        result, pause = exchange.result, 0.0
        if isinstance(result, Reply):
            self._cooldown.on_success(sent_at=exchange.sent_at)
        elif result.kind is FailureKind.RATE_LIMITED:
            pause = await self._pause(exchange, result, reservation)
        elif result.kind in TERMINAL_KINDS:
            await self._limiter.halt(result.kind, own=_is_own(result))
        await self._limiter.settle(reservation, _used(result, reservation.cost))
        if result.rate is not None:
            await self._limiter.observe(result.rate, reservation=reservation)
        return pause

    async def _pause(self, exchange: Exchange, error: CallError, reservation: Reservation) -> float:
        seconds = self._cooldown.on_rate_limited(error, sent_at=exchange.sent_at, now=exchange.ended_at)
        if seconds > 0 and self._emit is not None:
            self._emit(Paused(seconds=seconds, account=self._account))
        await self._limiter.pause(seconds, reservation=reservation)
        return seconds

    def _abandon(self, request: Request, attempt: int, sent_at: float) -> None:
        """Tell gates and observers of a request that we gave up on: nothing is known of it."""
        if not self._reports:
            return
        now = self._clock.monotonic()
        event = AttemptFinished(
            index=request.index,
            attempt=attempt,
            verdict=Verdict.IGNORED,
            latency=now - sent_at,
        )
        for gate in self._gates:
            gate.settle(request, event, now=now)
        if self._emit is not None:
            self._emit(event)


def is_of_account(error: CallError) -> bool:
    """Tell whether a failure of a terminal kind is one that another account may not have.

    Its key, its credit, its URL, a model that it does not serve: everything but the parameters of the request.
    """
    if error.kind is not FailureKind.CONFIGURATION:
        return error.kind in TERMINAL_KINDS
    return error.status_code not in _BAD_REQUEST or error.code.casefold() in _NO_MODEL


def _is_own(error: CallError) -> bool:
    """Tell whether it is this request's parameters that are refused, and not everybody's key, credit or model."""
    anybody = error.status_code in _NOWHERE or error.code.casefold() in _NO_MODEL
    return error.kind is FailureKind.CONFIGURATION and not anybody


def _used(result: Reply | CallError, reserved: Cost) -> Cost:
    """Return what a request took of the limits; what nobody told us is as much as was reserved."""
    if isinstance(result, Reply) and result.usage is not None:
        return Cost(requests=result.requests, tokens=result.usage.total_tokens)
    if isinstance(result, CallError) and result.kind in _NO_TOKENS_SPENT:
        return Cost(requests=result.requests)
    return Cost(requests=result.requests, tokens=reserved.tokens, output_cap=reserved.output_cap)


def _caused(kind: FailureKind, code: str, message: str, cause: BaseException) -> CallError:
    error = CallError(kind, code, message)
    error.__cause__ = cause
    return error
