"""Two runs on one destination, and a shard whose worker was lost with its machine."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_llm_provider.dataset.files.layout import Layout
from airflow_llm_provider.dataset.leases.lease_record import Owner, Record, Scope, Standing, Work
from airflow_llm_provider.dataset.leases.process import ProcessId
from airflow_llm_provider.local.rest import wait_until
from airflow_llm_provider.testing.scripted_server import Rule
from tests.system.stage import SYSTEM, asked, echoes, rows
from tests.system.watch import POLL

if TYPE_CHECKING:
    from airflow_llm_provider.testing.scripted_server import RecordedRequest
    from airflow_llm_provider.xcom import RunSummary, ShardState
    from tests.system.stage import Run, Stage

pytestmark = SYSTEM

ROWS = rows(*range(9))
ANSWERED = 3
IN_FLIGHT = 3
#: However long the run beside it takes.
HOLD = Rule(skip=ANSWERED, times=IN_FLIGHT, held=True)
#: Seconds after which the lost worker's lease runs out, once it is lost; clocks may differ by ten more.
RUNS_OUT = 8.0


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
    second = stage.run("strict", rows_per_shard=5)
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
        assert (facts.summary.reused, facts.summary.shards) == (len(ROWS), 2)


@dataclass(frozen=True, kw_only=True)
class LostWorker:
    ended: str
    tries: int
    state: ShardState
    log: str


def worker_lost_with_its_machine(stage: Stage) -> LostWorker:
    stage.write(ROWS)
    run = stage.run("strict")
    layout = Layout(f"file://{stage.destination}")
    owner = Owner(run=f"run {run.run_id} of DAG strict", task="task ask.complete, map index 0, try 1")
    # Of the plan as it was before the run was cleared, so that its split may go on.
    scope = Scope(work=Work.COMPLETE, run=owner.digest, plan="0" * 16, shard="0" * 32)

    def renewed_until_the_task_waits() -> bool:
        record = Record(
            owner=owner,
            process=ProcessId(host="worker-7", system="another machine", pid=4711, started="1"),
            standing=Standing.HELD,
            since=time.time(),
            expires=time.time() + RUNS_OUT,
        )
        layout.storage.write_bytes(scope.name("0" * 16), record.to_bytes())
        return run.states().get(("complete", 0)) == "up_for_reschedule"

    wait_until(
        renewed_until_the_task_waits, timeout=300, what="the task does not wait for the lease", poll=POLL
    )
    return LostWorker(
        ended=run.end(),
        tries=run.shard().try_number,
        state=run.shard_state(),
        log=run.log("complete", index=0),
    )


class TestWorkerLostWithItsMachine:
    scene = staticmethod(worker_lost_with_its_machine)

    def test_A27_the_task_waits_for_the_lease_to_run_out_without_a_slot_and_without_a_retry(
        self, facts: LostWorker
    ) -> None:
        assert "process 4711 on host worker-7" in facts.log
        assert "The task gives its slots back and goes on at" in facts.log
        assert (facts.ended, facts.tries) == ("success", 1)

    def test_A27_then_it_asks_every_row(self, facts: LostWorker) -> None:
        assert (facts.state.requests, facts.state.rows_by_status) == (len(ROWS), {"success": len(ROWS)})
