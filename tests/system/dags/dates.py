"""DAGs that are about time: one that catches up on its past dates, one whose run is late."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from airflow import sdk
from airflow.sdk import DAG
from airflow.sdk.definitions.deadline import AsyncCallback, DeadlineAlert, DeadlineReference

from airflow_llm_provider import CompleteDatasetOperator, CompletionSpec, task_summary

DATA = os.environ["AIRFLOW__LLM_EXAMPLES__DATA"]
SPEC = CompletionSpec(model="scripted", prompt="Ticket: {{ text }}", max_output_tokens=16, temperature=0)


def job(name: str) -> None:
    """One task, since starting it is what a test waits for."""
    CompleteDatasetOperator(
        task_id="ask",
        spec=SPEC,
        source=f"{DATA}/{name}/in/ds={{{{ ds }}}}/*.parquet",
        destination=f"{DATA}/{name}/out/ds={{{{ ds }}}}",
        conn_id=name,
        concurrency=1,
        timeout=300,
    )


def tell(context: dict[str, Any]) -> None:
    Path(f"{urlsplit(DATA).path}/late_run/executor.txt").write_text(task_summary(context), encoding="utf-8")  # type: ignore[arg-type]


with DAG(
    "catches_up",
    schedule="@daily",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    end_date=datetime(2026, 1, 3, tzinfo=UTC),
    catchup=True,
):
    job("catch_up")

# Before 3.2 Airflow calls in the triggerer only.
CALLBACKS = [AsyncCallback("late_alerts.tell_from_triggerer")]
if hasattr(sdk, "SyncCallback"):
    CALLBACKS.append(sdk.SyncCallback(tell))

with DAG(
    "late",
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    deadline=[
        DeadlineAlert(
            reference=DeadlineReference.DAGRUN_QUEUED_AT, interval=timedelta(seconds=1), callback=callback
        )
        for callback in CALLBACKS
    ],
):
    job("late_run")
