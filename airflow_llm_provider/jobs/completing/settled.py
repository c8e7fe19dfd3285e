"""Rows of a shard that are settled before the first request: set aside by the split, or answered earlier."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING

from airflow_llm_provider.engine.call import Judge, Outcome, Reply
from airflow_llm_provider.engine.status import RowStatus
from airflow_llm_provider.jobs.completing.duplicates import answer_alike

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_llm_provider.dataset.outcomes.record import Record
    from airflow_llm_provider.dataset.plans.shards import ShardKeys


@dataclasses.dataclass(frozen=True, kw_only=True)
class SettledRows:
    """What is known of a shard's rows before anything is sent.

    :param outcomes: one per row in row order; ``None``: to be asked.
    :param reused: rows whose answer was already there, or is that of another row.
    """

    outcomes: list[Outcome | None]
    reused: int

    @property
    def pending(self) -> int:
        """Rows to be asked."""
        return self.outcomes.count(None)

    @property
    def rows_by_status(self) -> dict[str, int]:
        """Rows that are settled, by row status."""
        return dict(Counter(outcome.status.value for outcome in self.outcomes if outcome is not None))


def settle(
    keys: ShardKeys,
    answers: Mapping[tuple[bytes, int], Record],
    judge: Judge,
    *,
    alike: bool = False,
) -> SettledRows:
    """Match a shard's rows with the answers there are.

    :param keys: the shard's rows.
    :param answers: paid answers by fingerprint and occurrence.
    :param judge: parses the words of a stored answer again, since only words are stored.
    :param alike: whether an answer holds for every row with that request.
    """
    outcomes: list[Outcome | None] = []
    reused = 0
    for index, fingerprint in enumerate(keys.fingerprints):
        if fingerprint is None:
            outcomes.append(_set_aside(index, keys))
            continue
        record = answers.get((fingerprint, keys.occurrences[index])) if answers else None
        if record is None:
            outcomes.append(None)
            continue
        reused += 1
        outcomes.append(_reuse(index, record.outcome, judge))
    if alike and reused:
        open_rows = outcomes.count(None)
        outcomes = answer_alike(outcomes, keys)
        reused += open_rows - outcomes.count(None)
    return SettledRows(outcomes=outcomes, reused=reused)


def _set_aside(index: int, keys: ShardKeys) -> Outcome:
    status = RowStatus(keys.statuses[index] or RowStatus.REJECTED)
    return Outcome(index=index, status=status, code=status.value, message=keys.errors[index])


def _reuse(index: int, stored: Outcome, judge: Judge) -> Outcome:
    if stored.status is not RowStatus.SUCCESS:
        return dataclasses.replace(stored, index=index)
    judgement = judge(Reply(text=stored.text, finish_reason=stored.finish_reason, model=stored.model))
    return dataclasses.replace(
        stored,
        index=index,
        status=judgement.status,
        answer=judgement.answer,
        code=judgement.code,
        message=judgement.message,
    )
