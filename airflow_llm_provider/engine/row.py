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
        "best",
        "cost_usd",
        "late",
        "latency_ms",
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
        self.account: str | None = None
        #: How it ends if nothing better comes: with an unusable answer that is paid for.
        self.best: tuple[Reply, Judgement] | None = None
        #: Whether it was put off once.
        self.late = False

    def answered(self, reply: Reply, cost_usd: float | None) -> None:
        """Take in a completion, which is billed whatever it is worth."""
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

    def unusable(self, reply: Reply, judgement: Judgement) -> None:
        """Take in that a completion is of no use, and that another may be: this one is paid for all the same."""
        self.best = (reply, judgement)

    @property
    def settled(self) -> Outcome | None:
        """How the row ends when no further completion comes; ``None``: nothing was paid for, it is to be asked again."""
        return None if self.best is None else self.judged(*self.best)

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
        """Return the outcome of a row that ends with a failed request, unless an earlier answer is paid for."""
        settled = self.settled
        if settled is not None:
            return settled
        return Outcome(
            index=self.request.index,
            status=status,
            code=error.code,
            message=error.message,
            usage=self.usage,
            cost_usd=self.cost_usd,
            attempts=self.attempts,
            latency_ms=self.latency_ms,
            request_id=error.request_id,
            account=self.account,
        )

    def too_large(self, error: CostExceedsLimitError) -> Outcome:
        """Return the outcome of a row whose request the limits can never let through."""
        settled = self.settled
        if settled is not None:
            return settled
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
