"""One row on its way from request to outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_llm_provider.engine.call import CallError, Judgement, Outcome, Reply, Request
from airflow_llm_provider.engine.retry import Tries
from airflow_llm_provider.engine.status import RowStatus
from airflow_llm_provider.engine.usage import Usage

if TYPE_CHECKING:
    from airflow_llm_provider.engine.limiter import CostExceedsLimitError

_NOTHING = Usage()


class RowInProgress:
    """What a row has been through so far.

    :param priced: whether there is a price list at all; without one, no cost is known, not even that of nothing.
    """

    __slots__ = (
        "account",
        "attempts",
        "cost_usd",
        "late",
        "latency_ms",
        "reply",
        "request",
        "tries",
        "usage",
    )

    def __init__(self, request: Request, *, priced: bool) -> None:
        self.request = request
        self.tries = Tries()
        self.attempts = 0
        self.usage = _NOTHING
        self.cost_usd: float | None = 0.0 if priced else None
        self.latency_ms: float | None = None
        self.reply: Reply | None = None
        self.account: str | None = None
        #: Whether it was put off once.
        self.late = False

    def answered(self, reply: Reply, cost_usd: float | None) -> None:
        """Take in a completion, which is billed whatever it is worth."""
        self.reply = reply
        self.tries.outputs += 1
        if reply.usage is not None:
            self.usage = reply.usage if self.usage is _NOTHING else self.usage + reply.usage
        self.cost_usd = None if self.cost_usd is None or cost_usd is None else self.cost_usd + cost_usd

    def put_off(self) -> bool:
        """Begin anew, once; what was billed so far stays."""
        if self.late:
            return False
        self.late, self.tries = True, Tries()
        return True

    def judged(self, reply: Reply, judgement: Judgement) -> Outcome:
        """Return the outcome of a row whose latest completion is final."""
        return Outcome(
            index=self.request.index,
            status=judgement.status,
            text=reply.text if reply.text is not None else reply.refusal,
            answer=judgement.answer,
            code=judgement.code,
            message=judgement.message,
            model=reply.model,
            finish_reason=reply.finish_reason,
            usage=self.usage,
            cost_usd=self.cost_usd,
            attempts=self.attempts,
            latency_ms=self.latency_ms,
            request_id=reply.request_id,
            account=self.account,
        )

    def failed(self, status: RowStatus, error: CallError) -> Outcome:
        """Return the outcome of a row that ends with a failed request; earlier unusable words are kept."""
        reply = self.reply
        return Outcome(
            index=self.request.index,
            status=status,
            text=None if reply is None else reply.text,
            code=error.code,
            message=error.message,
            model=None if reply is None else reply.model,
            usage=self.usage,
            cost_usd=self.cost_usd,
            attempts=self.attempts,
            latency_ms=self.latency_ms,
            request_id=error.request_id,
            account=self.account,
        )

    def too_large(self, error: CostExceedsLimitError) -> Outcome:
        """Return the outcome of a row whose request the limits can never let through."""
        return Outcome(
            index=self.request.index,
            status=RowStatus.REQUEST_TOO_LARGE,
            code=error.code,
            message=error.message,
            usage=self.usage,
            cost_usd=self.cost_usd,
            attempts=self.attempts,
            latency_ms=self.latency_ms,
        )
