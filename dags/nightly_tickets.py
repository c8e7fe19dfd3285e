"""Labels the support tickets of one day, every night.

A run reads the partition `ds=<date>` of the tickets and writes the partition of the same date of the labels:

- scheduled, and in a backfill, the date is the run's own: the night after a day labels that day;
- triggered by hand, it is the one typed into the form, else the last day that was over at the run's logical date, which the
  form fills in with now: yesterday.

Running a date again asks only for tickets that are new or changed.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal

from airflow.configuration import conf
from airflow.sdk import DAG, Param
from airflow.timetables.interval import CronDataIntervalTimetable
from pydantic import BaseModel, Field

from airflow_llm_provider import CompletionSpec, llm_map

# Options of airflow.cfg. The first may be any URL that Airflow can read and write, such as s3://lake/demo.
DATA = conf.get("llm_examples", "data", fallback=f"file://{Path(__file__).resolve().parents[1]}/.local/data")
MODEL = conf.get("llm_examples", "model", fallback="smollm2-135m-instruct")

# The day that the run's data interval begins with. Not `ds`: of a run triggered by hand that is the day of the logical date,
# which the form fills in with now. A run triggered without a logical date has neither.
DATE = (
    "{{ params.date or (data_interval_start | ds if data_interval_start is defined and data_interval_start "
    "else macros.ds_add(dag_run.run_after | ds, -1)) }}"
)


class Ticket(BaseModel):
    """What the model says about a ticket."""

    team: Literal["billing", "login", "shipping", "bugs", "other"]
    urgency: Literal["low", "normal", "high"]
    angry: bool = Field(description="Whether the customer is angry")


with DAG(
    "nightly_tickets",
    description="Labels the support tickets of one day",
    # With data intervals, `ds` is the day that has just ended; a plain cron expression would give the new one.
    schedule=CronDataIntervalTimetable("@daily", timezone="UTC"),
    start_date=datetime(2026, 1, 1),  # noqa: DTZ001 - Airflow reads it in its own time zone
    catchup=False,
    max_active_runs=3,
    default_args={"retries": 2, "retry_delay": timedelta(minutes=1)},
    tags=["llm"],
    doc_md=__doc__,
    params={
        "date": Param(
            None, type=["string", "null"], format="date", description="Day to label; empty: the run's own"
        ),
        "model": Param(MODEL, type="string", minLength=1, description="Model, as the endpoint knows it"),
        "shard_tokens": Param(
            20_000, type="integer", minimum=1, description="Prompt tokens of one shard, hence of one task"
        ),
        "dry_run": Param(False, type="boolean", description="Only count rows, tokens and cost"),  # noqa: FBT003
    },
):
    llm_map(
        group_id="label",
        spec=CompletionSpec(
            model=MODEL,
            system="You sort support tickets of a web shop. Answer in JSON.",
            prompt="Subject: {{ subject }}\n\n{{ body }}",
            output_schema=Ticket,
            max_output_tokens=96,
            temperature=0,
        ),
        model="{{ params.model }}",
        source=f"{DATA}/tickets/ds={DATE}/*.parquet",
        destination=f"{DATA}/labels/ds={DATE}",
        shard_tokens="{{ params.shard_tokens }}",
        dry_run="{{ params.dry_run }}",
        pool="llm",
        concurrency=2,
        timeout=180,
    )
