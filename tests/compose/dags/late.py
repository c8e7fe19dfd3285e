"""A DAG of which every run is late, with a callback of its deadline that runs where tasks do."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, DeadlineAlert, DeadlineReference, SyncCallback

from airflow_llm_provider import task_summary


def tell(context: dict[str, Any]) -> None:
    """Write down what is said, and by whom."""
    said = f"{task_summary(context)}\n{os.environ['HOSTNAME']}"  # type: ignore[arg-type]
    Path(f"{urlsplit(os.environ['AIRFLOW__LLM_EXAMPLES__DATA']).path}/late.txt").write_text(
        said, encoding="utf-8"
    )


with DAG(
    "late",
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    deadline=DeadlineAlert(
        reference=DeadlineReference.DAGRUN_QUEUED_AT, interval=timedelta(0), callback=SyncCallback(tell)
    ),
):
    EmptyOperator(task_id="nothing")
