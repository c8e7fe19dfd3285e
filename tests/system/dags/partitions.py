"""A DAG with one run for each partition, and another that runs on what it has made. For Airflow 3.2 and newer."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Any

from airflow.sdk import (
    DAG,
    Asset,
    CronPartitionTimetable,
    PartitionedAssetTimetable,
    get_current_context,
    task,
)

from airflow_llm_provider import CompletionSpec, llm_map

DATA = f"{os.environ['AIRFLOW__LLM_EXAMPLES__DATA']}/partitions"
SPEC = CompletionSpec(model="scripted", prompt="Ticket: {{ text }}", max_output_tokens=16, temperature=0)

with DAG(
    "partitioned",
    schedule=CronPartitionTimetable("0 2 * * *", timezone="UTC", run_offset=-1, key_format="%Y-%m-%d"),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
):
    llm_map(
        group_id="ask",
        spec=SPEC,
        source=f"{DATA}/in/ds={{{{ dag_run.partition_key }}}}/*.parquet",
        destination=f"{DATA}/out/ds={{{{ dag_run.partition_key }}}}",
        conn_id="partitions_of_days",
        concurrency=2,
    )

with DAG("after_partitioned", schedule=PartitionedAssetTimetable(assets=Asset("partitioned.ask"))):

    @task
    def seen() -> dict[str, Any]:
        """Return which partition this is about, and what became of it."""
        context = get_current_context()
        [events] = context["triggering_asset_events"].values()
        return {
            "partition": context["dag_run"].partition_key,
            "rows": [event.extra["rows"] for event in events],
        }

    seen()
