"""An unpaused DAG with `catchup=True` works off its past dates, each with an output of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_llm_provider.dataset import read_results
from airflow_llm_provider.local.rest import wait_until
from tests.system.stage import ROW_TEXT, SYSTEM, Run

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_llm_provider.testing.scripted_server import RecordedRequest
    from tests.system.stage import Stage

pytestmark = SYSTEM

DAG_ID = "catches_up"
#: Rows of each date from the DAG's start to its end.
ROWS = {"2026-01-01": 1, "2026-01-02": 3, "2026-01-03": 2}
CLEARED = "2026-01-02"


@dataclass(frozen=True, kw_only=True)
class Facts:
    runs: dict[str, str]
    states: dict[str, str]
    prompts: list[str]
    texts: dict[str, list[str]]
    cleared: str
    later_requests: list[RecordedRequest]
    later_texts: dict[str, list[str]]


def catch_up(stage: Stage) -> Facts:
    data = stage.folder.parent / "data" / stage.name
    for day, texts in expected().items():
        folder = data / "in" / f"ds={day}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"text": texts}), folder / "rows.parquet")
    client = stage.client
    client.wait_for_dag(DAG_ID)
    client.unpause(DAG_ID)
    runs: list[dict[str, Any]] = []

    def all_there() -> bool:
        runs[:] = client.runs(DAG_ID)
        return len(runs) >= len(ROWS)

    wait_until(all_there, timeout=300, what="there is no run for every date", poll=2.0)
    days = {run["dag_run_id"]: run["logical_date"][:10] for run in runs}
    states = {day: Run(client=client, dag_id=DAG_ID, run_id=run_id).end() for run_id, day in days.items()}
    texts = outputs(data)
    prompts = sorted(request.prompt for request in stage.heal())

    [again] = [run_id for run_id, day in days.items() if day == CLEARED]
    run = Run(client=client, dag_id=DAG_ID, run_id=again)
    run.clear_all()
    return Facts(
        cleared=run.end(),
        runs={each["logical_date"][:10]: each["run_type"] for each in client.runs(DAG_ID)},
        states=states,
        prompts=prompts,
        texts=texts,
        later_requests=stage.server.requests,
        later_texts=outputs(data),
    )


def expected() -> dict[str, list[str]]:
    """Texts of every date."""
    return {day: [f"{day} number {n} {ROW_TEXT}" for n in range(count)] for day, count in ROWS.items()}


def outputs(data: Path) -> dict[str, list[str]]:
    """Texts of every output that was answered, by date."""
    return {
        folder.name.removeprefix("ds="): [
            row["text"]
            for row in read_results(f"file://{folder}").to_pylist()
            if row["answer"] == f"echo: Ticket: {row['text']}"
        ]
        for folder in (data / "out").iterdir()
    }


class TestCatchUp:
    scene = staticmethod(catch_up)

    def test_every_date_has_one_run_of_the_schedule(self, facts: Facts) -> None:
        assert facts.runs == dict.fromkeys(ROWS, "scheduled")
        assert facts.states == dict.fromkeys(ROWS, "success")

    def test_every_date_has_its_own_output(self, facts: Facts) -> None:
        assert facts.texts == expected()

    def test_each_row_is_asked_once(self, facts: Facts) -> None:
        assert facts.prompts == sorted(f"Ticket: {text}" for texts in expected().values() for text in texts)

    def test_a_date_that_is_run_again_costs_nothing_and_leaves_the_others_alone(self, facts: Facts) -> None:
        assert (facts.cleared, facts.later_requests) == ("success", [])
        assert facts.later_texts == facts.texts
