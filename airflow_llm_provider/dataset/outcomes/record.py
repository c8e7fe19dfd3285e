"""One stored answer: whose it is and how the row ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_llm_provider.engine.budget.spent import Spent
from airflow_llm_provider.engine.status import PAID_STATUSES, RowStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from airflow_llm_provider.engine.call import Outcome


@dataclass(frozen=True, slots=True)
class Record:
    """One stored answer.

    :param fingerprint: hash of the request.
    :param occurrence: 0, 1, 2, … among the identical requests of its shard, in row order.
    :param outcome: how the row ended; its ``answer`` is left out, since the text says it.
    """

    fingerprint: bytes
    occurrence: int
    outcome: Outcome

    @property
    def key(self) -> tuple[bytes, int]:
        """What a row of a shard is known by."""
        return self.fingerprint, self.occurrence


def is_answered(outcome: Outcome) -> bool:
    """Tell whether a completion was received and billed, so that the row is never asked again.

    A filter that stopped an answer half-way was billed; one that refused the prompt was not.
    """
    if outcome.status is RowStatus.CONTENT_FILTER:
        return outcome.finish_reason is not None
    return outcome.status in PAID_STATUSES


def cost_of(records: Iterable[Record], *, unsaid: Callable[[Record], Spent]) -> Spent:
    """Add up what answers have cost; unknown prices count as nothing.

    :param unsaid: what an answer counts of which the endpoint did not say what it took.
    """
    spent = Spent()
    for record in records:
        outcome = record.outcome
        # A copy of another row's answer was sent nothing for.
        if not outcome.usage.total_tokens and outcome.attempts and is_answered(outcome):
            spent += unsaid(record)
        else:
            spent += Spent(tokens=outcome.usage.total_tokens, cost_usd=outcome.cost_usd or 0.0)
    return spent
