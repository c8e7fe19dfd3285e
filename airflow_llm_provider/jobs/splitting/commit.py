"""The last step of every split: the plan is written, under the lease."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from airflow_llm_provider.dataset.files.urls import public_uri
from airflow_llm_provider.jobs.splitting.estimate import SplitResult

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable

    from airflow_llm_provider.dataset.files.layout import Layout
    from airflow_llm_provider.dataset.leases.lease import Lease
    from airflow_llm_provider.dataset.plans.plan import Plan
    from airflow_llm_provider.engine.clock import Clock
    from airflow_llm_provider.jobs.claim import Claimant
    from airflow_llm_provider.jobs.splitting.estimate import Estimate


def commit(
    write: Callable[[str], Plan],
    *,
    layout: Layout,
    destination: str,
    estimate: Estimate,
    start_over: bool,
    lease: Lease,
    claimant: Claimant,
    clock: Clock,
    log: logging.Logger,
) -> SplitResult:
    """Write the shards and the plan, and keep the destination where the claimant wants it kept.

    :param write: writes them and returns the plan; it is given the ISO time of the split.
    :param lease: the lease on the destination, which is held.
    :raises LLMBusyError: when the lease was lost meanwhile; nothing was written.
    """
    if start_over:
        log.warning(
            "Starting over: every stored answer under %s is forgotten and paid for again.",
            public_uri(destination),
        )
    lease.check()
    plan = write(dt.datetime.fromtimestamp(clock.time(), tz=dt.UTC).isoformat())
    lease.leave = claimant.leave
    return SplitResult(
        plan_uri=layout.uri(layout.plan(plan.plan_id)),
        plan_id=plan.plan_id,
        references=tuple(plan.references(layout)),
        estimate=estimate,
    )
