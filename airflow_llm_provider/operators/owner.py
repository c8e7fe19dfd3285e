"""The run that a task works for, as others find it named in a lease."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_llm_provider.jobs.claim import Claimant


def claimant_of(context: Context) -> Claimant:
    """Return who a task works for."""
    # They load pyarrow, which a DAG file need not pay for.
    from airflow_llm_provider.dataset.leases.lease_record import Owner  # noqa: PLC0415
    from airflow_llm_provider.jobs.claim import Claimant  # noqa: PLC0415

    instance = context["ti"]
    index = instance.map_index
    mapped = "" if index is None or index < 0 else f", map index {index}"
    owner = Owner(
        run=f"run {instance.run_id} of DAG {instance.dag_id}",
        task=f"task {instance.task_id}{mapped}, try {instance.try_number}",
    )
    return Claimant(owner=owner, leave=True)
