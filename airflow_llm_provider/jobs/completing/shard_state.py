"""How one try at a shard goes, as it crosses XCom."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from airflow_llm_provider.engine.report import EngineReport
from airflow_llm_provider.xcom import ShardState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_llm_provider.jobs.completing.settled import SettledRows
    from airflow_llm_provider.xcom import ShardReference

_MOST_ERROR_KINDS = 10


def shard_state(
    reference: ShardReference,
    *,
    status: str,
    settled: SettledRows | None,
    report: EngineReport | None,
    copies: Mapping[str, int],
    seconds: float,
    files: tuple[str, ...],
    message: str | None,
) -> ShardState:
    """Put together what is known of a try.

    :param settled: rows that needed no request; ``None``: not looked for yet.
    :param report: of the engine; ``None``: it was not needed, or not yet.
    :param copies: rows that took another's answer, by row status.
    """
    report = report or EngineReport()
    rows: Counter[str] = Counter(report.rows_by_status)
    if settled is not None:
        rows.update(settled.rows_by_status)
    rows.update(copies)
    pending = reference.rows - rows.total()
    if pending > 0:
        rows["pending"] = pending
    return ShardState(
        shard=reference,
        status=status,
        rows_by_status=dict(rows),
        reused=(0 if settled is None else settled.reused) + sum(copies.values()),
        requests=report.requests,
        retries=report.retries,
        usage=report.usage,
        # Nothing was sent: known to be free, whatever the price.
        cost_usd=report.cost_usd if report.requests else 0.0,
        waited_seconds=round(report.waited_seconds, 3),
        seconds=round(seconds, 3),
        files=files,
        # A refusal that stops the shard ends no row; what was refused is still told.
        errors=dict(Counter(report.errors or report.failed_requests).most_common(_MOST_ERROR_KINDS)),
        message=message,
    )
