"""What becomes of a row after each exchange. Pure but for the judge and the price list it was given."""

from __future__ import annotations

import math
import traceback
from typing import TYPE_CHECKING

from airflow_llm_provider.engine.call import TERMINAL_KINDS, CallError, FailureKind, Judgement, Reply
from airflow_llm_provider.engine.exchange import CLIENT_BUG
from airflow_llm_provider.engine.retry import GiveUp, Retry, StopRun, Tries
from airflow_llm_provider.engine.status import RowStatus
from airflow_llm_provider.engine.terminal import terminal_error
from airflow_llm_provider.engine.value import value
from airflow_llm_provider.errors import LLMRetryableError, LLMTerminalError

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_llm_provider.engine.call import Judge, Outcome
    from airflow_llm_provider.engine.exchange import Exchange
    from airflow_llm_provider.engine.rejections import RejectionStreak
    from airflow_llm_provider.engine.retry import RetryPolicy
    from airflow_llm_provider.engine.row import RowInProgress
    from airflow_llm_provider.engine.usage import Usage
    from airflow_llm_provider.errors import LLMError

#: Rows that may end with a bug in a row, before it is plain that every row will.
_MAX_BUG_STREAK = 5
#: How an endpoint that is down answers, or what stands before it; a single row may be the reason, but rarely is.
_DOWN_STATUSES = frozenset({502, 503, 504, 529})
#: What no row can be the reason for.
_DOWN_CODES = frozenset({"connect_failed", "connect_timeout"})
#: Code of an answer that the judge could not judge.
_JUDGE_BUG = "judge_bug"


@value
class Ruling:
    """What becomes of a row, and of the run.

    :param outcome: how the row ends; ``None``: it does not end yet.
    :param wait: seconds until the row's next attempt; ``None``: there is none.
    :param put_off: whether the row is to begin anew when all others had their turn.
    :param stop: ends the run.
    """

    outcome: Outcome | None = None
    wait: float | None = None
    put_off: bool = False
    stop: LLMError | None = None


class Referee:
    """Rules on every exchange.

    :param rejections: tells when rejected rows are no accident.
    :param on_bug: hears where injected code raised, and what.
    """

    def __init__(
        self,
        judge: Judge,
        retry: RetryPolicy,
        *,
        rejections: RejectionStreak,
        on_bug: Callable[[str, BaseException], None],
    ) -> None:
        self._judge = judge
        self._retry = retry
        self._rejections = rejections
        self._on_bug = on_bug
        self._last_success = -math.inf
        self._bug_streak = 0

    def price(
        self, exchange: Exchange, price: Callable[[str | None, Usage], float | None] | None
    ) -> float | None:
        """Return what the exchange cost in US dollars; ``None``: unknown, or there is no completion."""
        reply = exchange.result
        if price is None or isinstance(reply, CallError) or reply.usage is None:
            return None
        model = reply.model
        try:
            return price(exchange.request.body.get("model") if model is None else model, reply.usage)
        except Exception as error:  # noqa: BLE001 -- a price list must not cost a paid answer
            self._on_bug("price", error)
            return None

    def rule(
        self,
        row: RowInProgress,
        exchange: Exchange,
        cost_usd: float | None,
        *,
        broken: bool = False,
        more: bool = False,
    ) -> Ruling:
        """Decide what becomes of ``row``.

        :param broken: whether the endpoint seems to answer nobody, so that a row that has used up its attempts may only
            have been unlucky.
        :param more: whether there are other rows to try.
        """
        row.latency_ms = (exchange.ended_at - exchange.sent_at) * 1000
        result = exchange.result
        if isinstance(result, Reply):
            self._last_success = exchange.ended_at
            self._rejections.accepted()
            row.answered(result, cost_usd)
            return self._on_reply(row, result)
        return self._on_error(row, exchange, result, broken=broken, more=more)

    def _on_reply(self, row: RowInProgress, reply: Reply) -> Ruling:
        try:
            judgement = self._judge(reply)
        except Exception as error:  # noqa: BLE001 -- the answer is paid: keep its words, spare the other rows
            self._on_bug("judge", error)
            judgement = Judgement(
                status=RowStatus.INVALID_OUTPUT,
                code=_JUDGE_BUG,
                message=f"The answer could not be judged: {type(error).__name__} at {_place(error)}",
            )
            return self._end_with_bug(row.judged(reply, judgement), "judge", error)
        if judgement.try_again:
            decision = self._retry.on_output(row.tries)
            if isinstance(decision, Retry):
                row.unusable(reply, judgement)
                return Ruling(wait=decision.wait)
        self._bug_streak = 0
        return Ruling(outcome=row.judged(reply, judgement))

    def _on_error(
        self, row: RowInProgress, exchange: Exchange, error: CallError, *, broken: bool, more: bool
    ) -> Ruling:
        bug = error.__cause__ if error.code == CLIENT_BUG else None
        if bug is not None:
            self._on_bug("client", bug)
        if error.kind in TERMINAL_KINDS:
            return Ruling(stop=terminal_error(error, request=exchange.request, account=row.account))
        if error.kind is FailureKind.ROW:
            self._bug_streak = 0
            return Ruling(outcome=row.failed(error.row_status, error), stop=self._rejections.rejected(error))
        now = exchange.ended_at
        row.tries.count(error, now=now)
        decision = self._retry.on_error(error, row.tries, now=now, last_success=self._last_success)
        if not isinstance(decision, GiveUp):
            return _go_on(decision, error)
        if broken and bug is None:
            if more and row.put_off():
                return Ruling(put_off=True)
            if self._is_down(error):
                # It waits at the breaker for as long as an outage is borne, and is pending after that.
                row.tries = Tries()
                return Ruling(wait=0.0)
        return self._give_up(row, error, bug)

    def _is_down(self, error: CallError) -> bool:
        """Tell an endpoint that has gone down from a row that it chokes on.

        One that has not answered anything in this run may choke on all the rows that are left: then they end.
        """
        has_answered = self._last_success > -math.inf
        return error.code in _DOWN_CODES or (has_answered and error.status_code in _DOWN_STATUSES)

    def _give_up(self, row: RowInProgress, error: CallError, bug: BaseException | None) -> Ruling:
        self._rejections.accepted()
        outcome = row.failed(RowStatus.ERROR, error)
        if bug is not None:
            return self._end_with_bug(outcome, "client", bug)
        self._bug_streak = 0
        return Ruling(outcome=outcome)

    def _end_with_bug(self, outcome: Outcome, where: str, bug: BaseException) -> Ruling:
        self._bug_streak += 1
        if self._bug_streak < _MAX_BUG_STREAK:
            return Ruling(outcome=outcome)
        # Not chained: the bug's own text may quote an answer. Observers have the exception itself.
        stop = LLMTerminalError(
            f"{self._bug_streak} rows in a row ended with a bug in the {where}: {type(bug).__name__} at {_place(bug)}. "
            "Every further row would meet it. The words of answered rows are kept; mend the bug and run again."
        )
        return Ruling(outcome=outcome, stop=stop)


def _go_on(decision: Retry | StopRun, error: CallError) -> Ruling:
    if isinstance(decision, Retry):
        return Ruling(wait=decision.wait)
    return Ruling(stop=_retryable(decision, error))


def _retryable(decision: StopRun, error: CallError) -> LLMRetryableError:
    stop = LLMRetryableError(
        f"Stopped: {decision.reason}. Every answer so far is kept; run again in {decision.retry_after:.0f} s or later.",
        retry_after=decision.retry_after,
    )
    stop.__cause__ = error
    return stop


def _place(error: BaseException) -> str:
    """Return where an exception was raised, which holds no row text, unlike what it says."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return "an unknown place"
    return f"{frames[-1].filename}:{frames[-1].lineno}"
