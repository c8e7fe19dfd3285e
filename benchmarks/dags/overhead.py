"""Two DAGs of one shape: a job of one-row shards, and mapped tasks that do nothing."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from airflow.sdk import DAG, Param, task

from airflow_llm_provider import CompletionSpec, llm_map

START = datetime(2026, 1, 1, tzinfo=UTC)

with DAG(
    "shards",
    schedule=None,
    start_date=START,
    params={"source": Param("unset", type="string"), "destination": Param("unset", type="string")},
):
    llm_map(
        group_id="label",
        spec=CompletionSpec(model="scripted", prompt="Ticket: {{ body }}", max_output_tokens=16),
        source="{{ params.source }}",
        destination="{{ params.destination }}",
        max_rows_per_shard=1,
        concurrency=1,
    )

with DAG("empty", schedule=None, start_date=START, params={"parts": Param(1, type="integer", minimum=1)}):

    @task
    def split(params: dict[str, Any]) -> list[int]:
        """Return as many numbers as there are to be instances of the next."""
        return list(range(params["parts"]))

    @task
    def part(number: int) -> int:
        """Return the number."""
        return number

    @task
    def merge(numbers: Any) -> int:
        """Count what the instances returned."""
        return len(list(numbers))

    # Airflow gives the first one its params.
    merge(part.expand(number=split()))  # type: ignore[call-arg, misc]
