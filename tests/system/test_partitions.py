"""Runs of partitions: of the schedule, by hand, in a backfill, and what the asset's events tell the DAG after them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_llm_provider.dataset import read_results
from airflow_llm_provider.local.rest import wait_until
from tests.system.backfills import once_unlocked
from tests.system.stage import SYSTEM, Run

if TYPE_CHECKING:
    from tests.system.stage import Stage

pytestmark = SYSTEM

DAG_ID, AFTER = "partitioned", "after_partitioned"
#: Rows of each partition but that of the schedule: of the one triggered by hand, and of the one of the backfill.
ROWS = {"2026-02-05": 3, "2026-02-02": 2}
#: Rows of the schedule's, which is of yesterday or of the day before.
SCHEDULED_ROWS = 1


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Everything that happened.

    :param scheduled: partition of the schedule's run.
    :param due: the partition that was last over when that run was due.
    """

    scheduled: str
    due: str
    states: dict[str, str]
    texts: dict[str, list[str]]
    requests: int
    events: dict[str, int]
    seen: list[dict[str, Any]]


def partitions_of_days(stage: Stage) -> Facts:
    data = stage.folder.parent / "data" / "partitions"
    today = datetime.now(UTC).date()
    recent = {str(today - timedelta(days=days)): SCHEDULED_ROWS for days in range(3)}
    for key, count in {**recent, **ROWS}.items():
        folder = data / "in" / f"ds={key}"
        folder.mkdir(parents=True)
        pq.write_table(
            pa.table({"text": [f"{key} number {n}" for n in range(count)]}), folder / "rows.parquet"
        )
    client = stage.client
    for dag_id in (DAG_ID, AFTER):
        client.wait_for_dag(dag_id)
        client.unpause(dag_id)
    body = {"logical_date": None, "partition_key": "2026-02-05", "conf": {}}
    client.call("POST", f"/dags/{DAG_ID}/dagRuns", body=body)
    once_unlocked(
        client,
        DAG_ID,
        lambda: client.create_backfill(
            DAG_ID,
            start=datetime(2026, 2, 2, tzinfo=UTC),
            end=datetime(2026, 2, 2, 12, tzinfo=UTC),
            max_active_runs=1,
        ),
    )
    runs = all_runs(stage)
    states = {
        key: Run(client=client, dag_id=DAG_ID, run_id=run["dag_run_id"]).end() for key, run in runs.items()
    }
    # Airflow 3.3 answers a question about events with an error while a run that one of them made has not begun.
    seen = after(stage)
    [scheduled] = (run for run in runs.values() if run["run_type"] == "scheduled")
    due = datetime.fromisoformat(scheduled["run_after"]).date() - timedelta(days=1)
    return Facts(
        scheduled=scheduled["partition_key"],
        due=str(due),
        states=states,
        texts={
            key: [row["text"] for row in read_results(f"file://{data}/out/ds={key}").to_pylist()]
            for key in runs
        },
        requests=len(stage.server.requests),
        events={
            event["partition_key"]: event["extra"]["rows"]
            for event in client.call("GET", "/assets/events", source_dag_id=DAG_ID)["asset_events"]
        },
        seen=seen,
    )


def all_runs(stage: Stage) -> dict[str, dict[str, Any]]:
    """Wait for the run of every partition, and return them as the API describes them."""
    runs: dict[str, dict[str, Any]] = {}

    def there() -> bool:
        runs.update({run["partition_key"]: run for run in stage.client.runs(DAG_ID)})
        return len(runs) > len(ROWS)

    wait_until(there, timeout=300, what="there is no run for every partition", poll=1.0)
    return runs


def after(stage: Stage) -> list[dict[str, Any]]:
    """Wait until the other DAG has run on every partition, and return what it saw."""

    def all_there() -> bool:
        return len(stage.client.runs(AFTER)) > len(ROWS)

    wait_until(all_there, timeout=300, what=f"{AFTER} has not run on every partition", poll=1.0)
    runs = [
        Run(client=stage.client, dag_id=AFTER, run_id=run["dag_run_id"]) for run in stage.client.runs(AFTER)
    ]
    assert {run.end() for run in runs} == {"success"}
    return [stage.client.xcom(AFTER, run.run_id, "seen") for run in runs]


class TestPartitions:
    scene = staticmethod(partitions_of_days)

    def test_the_schedule_labels_the_partition_that_was_last_over(self, facts: Facts) -> None:
        assert facts.scheduled == facts.due

    def test_every_partition_has_its_run_and_its_output(self, facts: Facts) -> None:
        rows = expected(facts)
        assert facts.states == dict.fromkeys(rows, "success")
        assert facts.texts == {
            key: [f"{key} number {n}" for n in range(count)] for key, count in rows.items()
        }
        assert facts.requests == sum(rows.values())

    def test_the_assets_event_names_the_partition(self, facts: Facts) -> None:
        assert facts.events == expected(facts)

    def test_the_dag_after_it_runs_once_for_each_partition(self, facts: Facts) -> None:
        rows = expected(facts)
        assert {entry["partition"]: entry["rows"] for entry in facts.seen} == {
            key: [count] for key, count in rows.items()
        }
        assert len(facts.seen) == len(rows)


def expected(facts: Facts) -> dict[str, int]:
    """Rows of every partition."""
    return {facts.scheduled: SCHEDULED_ROWS, **ROWS}
