"""`dags/nightly_tickets.py` as it stands: scheduled, triggered by hand with and without a date, backfilled."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_llm_provider.dataset import read_results
from airflow_llm_provider.local.errors import ApiError
from airflow_llm_provider.local.rest import wait_until
from airflow_llm_provider.starter.tickets import sample_tickets, write_sample_tickets
from tests.system.backfills import once_unlocked
from tests.system.stage import API_KEY, ROW_TEXT, SYSTEM, Run, begins_with

if TYPE_CHECKING:
    from airflow_llm_provider.local import LocalAirflow
    from airflow_llm_provider.testing.scripted_server import RecordedRequest
    from tests.system.stage import Stage

pytestmark = SYSTEM

DAG_ID = "nightly_tickets"
#: Rows of each date of the backfill; each becomes a shard.
ROWS = {date(2026, 2, 2): 1, date(2026, 2, 3): 2}
FIRST, LAST = datetime(2026, 2, 2, tzinfo=UTC), datetime(2026, 2, 3, 12, tzinfo=UTC)
DRY, DATED = date(2026, 3, 1), date(2026, 3, 2)

States = dict[tuple[str, int], "str | None"]


@dataclass(frozen=True, kw_only=True)
class Night:
    """How one run went.

    :param day: the date it labelled.
    :param output: its output, None when there is none.
    """

    day: date
    state: str
    states: States
    estimate: dict[str, Any]
    output: list[dict[str, Any]] | None

    @property
    def shards(self) -> int:
        return sum(task == "complete" and index >= 0 for task, index in self.states)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Everything that happened, in two passes."""

    refusal: str
    dry: Night
    dated: Night
    scheduled: Night
    backfill: list[Night]
    requests: list[RecordedRequest]
    failed_only: set[str]
    undated: Night
    second_backfill: list[Night]
    later_requests: list[RecordedRequest]


class Nights:
    """The DAG, its data and its runs.

    :param stage: whose server answers.
    """

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.client = stage.client
        self.data = stage.folder.parent / "data"

    def prepare(self) -> None:
        """Write the partitions, and let the schedule begin."""
        for day, count in {**ROWS, DRY: 2, DATED: 2}.items():
            path = self.data / "tickets" / f"ds={day}" / "tickets.parquet"
            path.parent.mkdir(parents=True)
            rows = [{"id": n, "subject": f"{day} number {n}", "body": ROW_TEXT} for n in range(count)]
            pq.write_table(pa.Table.from_pylist(rows), path)
        write_sample_tickets(self.data / "tickets")
        host = self.stage.server.base_url
        self.client.put_connection("llm_default", conn_type="llm", host=host, password=API_KEY)
        self.client.put_pool("llm", 4)
        self.client.unpause(DAG_ID)

    def trigger(self, params: dict[str, Any], logical_date: datetime | None = None) -> Run:
        """Trigger as the form does."""
        return self.stage.trigger(DAG_ID, params=params, logical_date=logical_date, group="label")

    def backfill(self, reprocess: str) -> None:
        """The same backfill through the REST API, as the UI does."""

        def create() -> None:
            self.client.create_backfill(
                DAG_ID,
                start=FIRST,
                end=LAST,
                reprocess=reprocess,
                params={"shard_tokens": 1},
                max_active_runs=2,
            )

        once_unlocked(self.client, DAG_ID, create)

    def of_type(self, run_type: str) -> list[Run]:
        """Runs of one type by date, waited for until there is one."""
        found: list[dict[str, Any]] = []

        def there() -> bool:
            found[:] = [run for run in self.client.runs(DAG_ID) if run["run_type"] == run_type]
            return bool(found)

        wait_until(there, timeout=300, what=f"there is no {run_type} run", poll=1.0)
        ids = [run["dag_run_id"] for run in sorted(found, key=lambda run: str(run["logical_date"]))]
        return [Run(client=self.client, dag_id=DAG_ID, run_id=run_id, group="label") for run_id in ids]

    def told(self, run: Run, day: date | None = None) -> Night:
        """Wait for a run and tell how it went.

        :param day: the date that was typed in, if one was.
        """
        state = run.end()
        [described] = [found for found in self.client.runs(DAG_ID) if found["dag_run_id"] == run.run_id]
        if day is None and described["logical_date"] is not None:
            day = datetime.fromisoformat(described["logical_date"]).date()
        elif day is None:
            day = datetime.fromisoformat(described["run_after"]).date() - timedelta(days=1)
        folder = self.data / "labels" / f"ds={day}"
        return Night(
            day=day,
            state=state,
            states=run.states(),
            estimate=run.xcom("split", key="estimate"),
            output=read_results(f"file://{folder}").to_pylist() if folder.exists() else None,
        )


def backfill_by_command_line(airflow: LocalAirflow) -> None:
    """`airflow backfill create` over both dates, of the DAG that is still paused."""
    words = ["--dag-id", DAG_ID, "--from-date", FIRST.isoformat(), "--to-date", LAST.isoformat()]
    words += ["--dag-run-conf", '{"shard_tokens": 1}', "--max-active-runs", "2"]
    command = airflow.command("backfill", "create", *words)

    def create() -> None:
        subprocess.run(
            command, env=airflow.environment, capture_output=True, text=True, timeout=300, check=True
        )

    with airflow.client() as client:
        once_unlocked(client, DAG_ID, create)


@begins_with(backfill_by_command_line)
def nightly_tickets(stage: Stage) -> Facts:
    nights = Nights(stage)
    nights.prepare()
    with pytest.raises(ApiError) as refusal:
        nights.trigger({"shard_tokens": 0})
    dry = nights.trigger({"dry_run": True, "date": str(DRY)})
    # As the form fills it in: some time of the day after.
    morning = datetime(DATED.year, DATED.month, DATED.day, 9, tzinfo=UTC) + timedelta(days=1)
    dated = nights.trigger({"model": "typed-into-the-form", "shard_tokens": 1}, morning)
    first = {
        "refusal": str(refusal.value),
        "dry": nights.told(dry, DRY),
        "dated": nights.told(dated, DATED),
        "scheduled": nights.told(nights.of_type("scheduled")[0]),
        "backfill": [nights.told(run) for run in nights.of_type("backfill")],
    }
    requests = stage.heal()

    nights.backfill("failed")
    failed_only = {run.state() for run in nights.of_type("backfill")}
    undated = nights.trigger({})
    nights.backfill("completed")

    return Facts(
        **first,
        requests=requests,
        failed_only=failed_only,
        undated=nights.told(undated),
        second_backfill=[nights.told(run) for run in nights.of_type("backfill")],
        later_requests=stage.server.requests,
    )


def of_day(requests: list[RecordedRequest], day: date) -> list[RecordedRequest]:
    return [request for request in requests if f"{day} number" in request.prompt]


class TestForm:
    scene = staticmethod(nightly_tickets)

    def test_a_dry_run_is_green_and_spends_nothing(self, facts: Facts) -> None:
        assert facts.dry.state == "success"
        assert facts.dry.states == {
            ("split", -1): "success",
            ("complete", -1): "skipped",
            ("merge", -1): "skipped",
        }
        assert (facts.dry.estimate["rows"], facts.dry.estimate["requests"]) == (2, 2)
        assert of_day(facts.requests, DRY) == []
        assert facts.dry.output is None

    def test_model_and_shard_size_come_from_the_form(self, facts: Facts) -> None:
        assert facts.dated.state == "success"
        assert facts.dated.shards == 2
        asked = of_day(facts.requests, DATED)
        assert [(request.body or {})["model"] for request in asked] == ["typed-into-the-form"] * 2

    def test_a_run_with_a_logical_date_labels_the_last_day_that_was_over(self, facts: Facts) -> None:
        assert facts.dated.output is not None
        assert [row["subject"] for row in facts.dated.output] == [f"{DATED} number {n}" for n in (0, 1)]

    def test_a_run_without_a_logical_date_labels_yesterday(self, facts: Facts) -> None:
        assert facts.undated.state == "success"
        assert facts.undated.output is not None
        expected = [ticket["id"] for ticket in sample_tickets(facts.undated.day)]
        assert [row["id"] for row in facts.undated.output] == expected

    def test_a_value_out_of_bounds_is_refused_before_a_run_exists(self, facts: Facts) -> None:
        assert "shard_tokens: 0 is less than the minimum of 1" in facts.refusal


class TestSchedule:
    scene = staticmethod(nightly_tickets)

    def test_the_run_of_the_schedule_labels_its_own_date(self, facts: Facts) -> None:
        assert facts.scheduled.state == "success"
        assert facts.scheduled.output is not None
        assert [row["id"] for row in facts.scheduled.output] == [
            ticket["id"] for ticket in sample_tickets(facts.scheduled.day)
        ]
        assert {row["team"] for row in facts.scheduled.output} <= {
            "billing",
            "login",
            "shipping",
            "bugs",
            "other",
        }

    def test_the_same_date_by_hand_asks_nothing_again(self, facts: Facts) -> None:
        # Unless midnight fell between the two.
        assert len(facts.later_requests) == (0 if facts.undated.day == facts.scheduled.day else 6)


class TestBackfill:
    scene = staticmethod(nightly_tickets)

    def test_A22_every_date_has_its_own_shards_and_output(self, facts: Facts) -> None:
        assert {night.day: night.shards for night in facts.backfill} == ROWS
        for night in facts.backfill:
            assert night.state == "success"
            assert night.output is not None
            subjects = [f"{night.day} number {n}" for n in range(ROWS[night.day])]
            assert [row["subject"] for row in night.output] == subjects
            assert {row["llm_status"] for row in night.output} == {"success"}
            assert len(of_day(facts.requests, night.day)) == ROWS[night.day]

    def test_A21_reprocessing_what_failed_runs_nothing(self, facts: Facts) -> None:
        assert facts.failed_only == {"success"}

    def test_A21_reprocessing_everything_asks_nothing(self, facts: Facts) -> None:
        assert [of_day(facts.later_requests, day) for day in ROWS] == [[], []]
        for before, after in zip(facts.backfill, facts.second_backfill, strict=True):
            assert after.estimate["answered"] == after.estimate["requests"] == before.estimate["requests"]
            assert (after.day, after.states, after.output) == (before.day, before.states, before.output)
