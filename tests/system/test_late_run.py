"""A run misses its deadline: somebody is called, nothing ends, and the answers go on being written."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow import sdk

from airflow_llm_provider.dataset import read_results
from airflow_llm_provider.local.rest import wait_until
from airflow_llm_provider.testing.scripted_server import Rule
from tests.system.stage import API_KEY, ROW_TEXT, SYSTEM, Run, asked, echoes, rows

if TYPE_CHECKING:
    from airflow_llm_provider.testing.scripted_server import RecordedRequest
    from tests.system.stage import Stage

pytestmark = SYSTEM

DAG_ID = "late"
DAY = datetime(2026, 1, 1, tzinfo=UTC)
#: Where Airflow calls back: before 3.2 in the triggerer only.
PLACES = ["triggerer", *(["executor"] if hasattr(sdk, "SyncCallback") else [])]
ROWS = rows(*range(4))
ANSWERED = 2


@dataclass(frozen=True, kw_only=True)
class Facts:
    run: Run
    notices: dict[str, str]
    answered_by_then: int
    ended: str
    tries: int
    requests: list[str]
    output: list[dict[str, Any]]


def late_run(stage: Stage) -> Facts:
    data = stage.folder.parent / "data" / stage.name
    folder = data / "in" / f"ds={DAY.date()}"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"text": ROWS}), folder / "rows.parquet")
    stage.server.script(Rule(skip=ANSWERED, times=1, held=True))
    stage.client.wait_for_dag(DAG_ID)
    stage.client.unpause(DAG_ID)
    run = stage.trigger(DAG_ID, logical_date=DAY)
    stage.wait_for_requests(run, answered=ANSWERED, in_flight=1)
    notices = {place: data / f"{place}.txt" for place in PLACES}
    wait_until(
        lambda: all(notice.exists() and notice.stat().st_size > 0 for notice in notices.values()),
        timeout=200,
        what="not everybody was called of the missed deadline",
        explain=lambda: f", only {[path.name for path in data.glob('*.txt')]}",
        poll=0.5,
    )
    answered = stage.server.stats()["answered"]
    before: list[RecordedRequest] = stage.heal()
    ended = run.end()
    return Facts(
        run=run,
        notices={place: notice.read_text(encoding="utf-8") for place, notice in notices.items()},
        answered_by_then=answered,
        ended=ended,
        tries=run.tasks()["ask", -1].try_number,
        requests=asked(before) + asked(stage.server.requests),
        output=read_results(f"file://{data}/out/ds={DAY.date()}").to_pylist(),
    )


class TestLateRun:
    scene = staticmethod(late_run)

    @pytest.mark.parametrize("place", PLACES)
    def test_the_callback_says_which_run_is_late(self, facts: Facts, place: str) -> None:
        which, late = facts.notices[place].splitlines()
        assert which == f"{DAG_ID} · {facts.run.run_id}"
        assert late.startswith("late: the run was to end by 20")
        assert late.endswith(("+00:00, and is running", "+00:00, and is queued"))

    @pytest.mark.parametrize("place", PLACES)
    def test_the_callback_says_no_row_and_no_key(self, facts: Facts, place: str) -> None:
        assert ROW_TEXT not in facts.notices[place]
        assert API_KEY not in facts.notices[place]

    def test_the_task_goes_on_and_no_answer_is_lost_or_paid_twice(self, facts: Facts) -> None:
        assert facts.answered_by_then == ANSWERED
        assert (facts.ended, facts.tries) == ("success", 1)
        assert sorted(facts.requests) == ROWS
        assert [row["answer"] for row in facts.output] == echoes(ROWS)
