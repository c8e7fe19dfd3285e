"""DAGs of the system tests: one per way to treat failures. What is asked, and of whom, comes by params."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from airflow.sdk import DAG, Param

from airflow_llm_provider import CompletionSpec, llm_map, task_summary

SPEC = CompletionSpec(model="scripted", prompt="Ticket: {{ text }}", max_output_tokens=16, temperature=0)


def tell(context: Any) -> None:
    """Leave a notice beside the destination."""
    destination = Path(urlsplit(context["params"]["destination"]).path)
    destination.with_name("notice.txt").write_text(task_summary(context), encoding="utf-8")


def dataset_job(dag_id: str, *, schedule: str | None = None, told: bool = False, **options: Any) -> None:
    with DAG(
        dag_id,
        schedule=schedule,
        on_failure_callback=tell if told else None,
        start_date=datetime(2026, 1, 1, tzinfo=UTC),
        catchup=False,
        default_args={"retry_delay": timedelta(seconds=1)},
        params={
            "source": Param("unset", type="string"),
            "destination": Param("unset", type="string"),
            "conn_id": Param("unset", type="string"),
            "rows_per_shard": Param(
                100, type="integer", minimum=1, description="Most rows of one shard, hence of one task"
            ),
        },
    ):
        llm_map(
            group_id="ask",
            spec=SPEC,
            source="{{ params.source }}",
            destination="{{ params.destination }}",
            conn_id="{{ params.conn_id }}",
            max_rows_per_shard="{{ params.rows_per_shard }}",
            **options,
        )


# One bad row fails its shard, and nothing is tried again.
dataset_job(
    "strict",
    retries=0,
    concurrency=1,
    max_attempts=1,
    failure_threshold=0,
    complete_kwargs={"on_failure_callback": tell},
)
# What may pass by itself is tried again. A request that a test holds is not given up.
dataset_job("patient", retries=2, concurrency=3, timeout=300)
# One request after the other, so that the first refusal is the only one.
dataset_job("careful", retries=2, concurrency=1)
# Two requests in flight for each shard, in a pool of four.
dataset_job("crowded", retries=0, concurrency=2, pool="four")
# A task for each input file.
dataset_job("by_file", retries=0, concurrency=2, split_by="file", split_bytes=1)
# Pools in which no shard could ever start.
dataset_job("poolless", retries=2, pool="nowhere")
dataset_job("cramped", told=True, retries=2, concurrency=5, pool="four")
# Runs that want the one slot at the same time.
dataset_job("crossing", schedule="@yearly", retries=3, concurrency=1, pool="one")
# Shards that meet on several workers.
dataset_job("spread", retries=3, concurrency=2, pool="llm", progress_interval=1)
