"""Two runs on one destination."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_llm_provider.dataset.layout import Layout
from airflow_llm_provider.testing.scripted_server import Rule
from tests.system.stage import SYSTEM, asked, echoes, rows

if TYPE_CHECKING:
    from airflow_llm_provider.testing.scripted_server import RecordedRequest
    from airflow_llm_provider.xcom import RunSummary
    from tests.system.stage import Run, Stage

pytestmark = SYSTEM

ROWS = rows(*range(9))
ANSWERED = 3
IN_FLIGHT = 3
#: Long enough for a whole run beside it; shorter than a request's timeout, after which it would be asked again.
HOLD = Rule(skip=ANSWERED, times=IN_FLIGHT, delay=50)


@dataclass(frozen=True, kw_only=True)
class TwoRuns:
    first: Run
    first_ended: str
    second_ended: str
    second_log: str
    before: list[RecordedRequest]
    after: list[RecordedRequest]
    output: list[dict[str, Any]]
    leases: list[str]
    cleared: str
    cleared_requests: int
    summary: RunSummary


def two_runs_on_one_destination(stage: Stage) -> TwoRuns:
    stage.write(ROWS)
    stage.server.script(HOLD)
    first = stage.run("patient")
    stage.wait_for_requests(first, answered=ANSWERED, in_flight=IN_FLIGHT)
    second = stage.run("strict", rows_per_shard=2)
    second_ended, second_log = second.end(), second.log("split")
    before = stage.heal()
    first_ended, after, output = first.end(), stage.heal(), stage.output()

    second.clear_all()

    return TwoRuns(
        first=first,
        first_ended=first_ended,
        second_ended=second_ended,
        second_log=second_log,
        before=before,
        after=after,
        output=output,
        leases=Layout(f"file://{stage.destination}").storage.files("_llm/leases"),
        cleared=second.end(),
        cleared_requests=len(stage.server.requests),
        summary=second.summary(),
    )


class TestTwoRunsOnOneDestination:
    scene = staticmethod(two_runs_on_one_destination)

    def test_A21_the_second_is_refused_and_told_by_whom(self, facts: TwoRuns) -> None:
        assert facts.second_ended == "failed"
        assert f"is in use by run {facts.first.run_id} of DAG patient (task ask.complete" in facts.second_log
        assert "only one at a time may work on it" in facts.second_log

    def test_A21_each_row_is_asked_once(self, facts: TwoRuns) -> None:
        assert facts.first_ended == "success"
        assert sorted(asked(facts.before) + asked(facts.after)) == ROWS
        assert [row["answer"] for row in facts.output] == echoes(ROWS)
        assert facts.leases == []

    def test_A21_cleared_afterwards_the_second_costs_nothing(self, facts: TwoRuns) -> None:
        assert (facts.cleared, facts.cleared_requests) == ("success", 0)
        assert (facts.summary.reused, facts.summary.shards) == (len(ROWS), 5)
