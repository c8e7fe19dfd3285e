"""Whether rows that have all ended went well enough for the task to succeed."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from airflow_llm_provider.dataset.outcomes.record import is_answered
from airflow_llm_provider.engine.status import RowStatus
from airflow_llm_provider.errors import LLMFailureThresholdError, LLMRetryableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from airflow_llm_provider.engine.call import Outcome
    from airflow_llm_provider.xcom import RunSummary

_ANSWERED_OR_BLANK = frozenset({RowStatus.SUCCESS, RowStatus.EMPTY_INPUT})
#: Ways to end that speak of the prompt, the model or the endpoint rather than of one row's content.
_NOT_THE_ROW = frozenset(
    {
        RowStatus.ERROR,
        RowStatus.REJECTED,
        RowStatus.INVALID_OUTPUT,
        RowStatus.TRUNCATED,
        RowStatus.EMPTY,
        RowStatus.CONTEXT_TOO_LONG,
        RowStatus.REQUEST_TOO_LARGE,
    }
)


def all_ended(outcomes: Sequence[Outcome | None], stop_reason: str | None) -> list[Outcome]:
    """Return the outcomes of rows that have all ended.

    :param stop_reason: why not all of them have; ``None``: unknown.
    :raises LLMRetryableError: when some have not.
    """
    finished = [outcome for outcome in outcomes if outcome is not None]
    if len(finished) < len(outcomes):
        left = len(outcomes) - len(finished)
        raise LLMRetryableError(
            f"stopped with {left:,} of {len(outcomes):,} rows not asked ({stop_reason or 'interrupted'}); every answer so "
            "far is kept, and the next try asks only the rest"
        )
    return finished


def check_shard(outcomes: Sequence[Outcome], *, asked: int, threshold: float | None) -> None:
    """Refuse a shard in which too much failed.

    One bad row never fails a shard, not even a shard of its own, unless the endpoint gave no answer at all.

    :param outcomes: one per row.
    :param asked: rows that were sent in this try.
    :param threshold: largest share of rows that may end without an answer; ``None``: all but all.
    :raises LLMRetryableError: no row that was asked got an answer, for reasons that may pass.
    :raises LLMFailureThresholdError: more rows than the threshold allows have none.
    """
    rows = Counter(outcome.status for outcome in outcomes)
    failed = failed_rows((status, count) for status, count in rows.items())
    candidates = len(outcomes) - rows[RowStatus.EMPTY_INPUT]
    if asked and rows[RowStatus.ERROR] == candidates:
        raise LLMRetryableError(
            f"none of the {asked:,} rows asked got an answer ({_kinds(outcomes)}); try again later"
        )
    if threshold is not None and candidates and failed / candidates > threshold:
        raise LLMFailureThresholdError(
            f"{failed:,} of {candidates:,} rows ({failed / candidates:.1%}) have no answer ({_kinds(outcomes)}), more "
            f"than the failure_threshold of {threshold:.1%}; answers are kept. Mend what the codes name and clear the "
            "task, or raise the threshold",
            asks_again=_asks_again(outcomes),
        )
    if threshold is None and candidates > 1 and sum(rows[status] for status in _NOT_THE_ROW) == candidates:
        raise LLMFailureThresholdError(
            f"none of the {candidates:,} rows has a usable answer ({_kinds(outcomes)}); paid answers are kept. Mend the "
            "prompt, the schema, max_output_tokens or the limits and clear the split, or set failure_threshold=1 to accept this",
            asks_again=_asks_again(outcomes),
        )


def check_run(summary: RunSummary, threshold: float | None) -> None:
    """Refuse a run in which more rows failed than the caller allows.

    :raises LLMFailureThresholdError: more rows than the threshold allows have no answer.
    """
    failed = failed_rows(summary.rows_by_status.items())
    candidates = summary.rows - summary.rows_by_status.get(RowStatus.EMPTY_INPUT, 0)
    if threshold is not None and candidates and failed / candidates > threshold:
        raise LLMFailureThresholdError(
            f"{failed:,} of {candidates:,} rows ({failed / candidates:.1%}) have no answer, more than the "
            f"failure_threshold of {threshold:.1%}. The output was written, rows without an answer are in "
            f"{summary.rejects}. Mend what the errors name and clear the shards, or raise the threshold"
        )


def failed_rows(rows_by_status: Iterable[tuple[str, int]]) -> int:
    """Count rows that should have an answer and have none: blank rows should not."""
    return sum(count for status, count in rows_by_status if status not in _ANSWERED_OR_BLANK)


def _asks_again(outcomes: Iterable[Outcome]) -> bool:
    """Tell whether another try would send anything: not what is paid for, nor what the split has set aside."""
    return any(outcome.attempts and not is_answered(outcome) for outcome in outcomes)


def _kinds(outcomes: Sequence[Outcome]) -> str:
    kinds = Counter(
        outcome.code or outcome.status.value
        for outcome in outcomes
        if outcome.status is not RowStatus.SUCCESS
    )
    return ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common(5))
