"""A task ends in the middle of its shard: killed by the kernel, or cleared by a person."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import psutil
from packaging.version import Version

from airflow_llm_provider.local.rest import wait_until
from airflow_llm_provider.testing.scripted_server import Rule
from tests.system.stage import SYSTEM, answered, asked, echoes, rows

if TYPE_CHECKING:
    from airflow_llm_provider.testing.scripted_server import RecordedRequest
    from airflow_llm_provider.xcom import RunSummary, ShardState
    from tests.system.stage import Run, Stage

pytestmark = SYSTEM

ROWS = rows(*range(12))
CONCURRENCY = 3
#: Before 3.2, Airflow shows the label only when a task has ended; the log shows it in every version.
SHOWS_LABELS_EARLY = Version(version("apache-airflow-core")) >= Version("3.2")
#: Requests that are answered before the server holds all further ones.
ANSWERED = 5
HOLD = Rule(skip=ANSWERED, delay=120)


@dataclass(frozen=True, kw_only=True)
class Facts:
    run: Run
    before: list[RecordedRequest]
    after: list[RecordedRequest]
    ended: str
    tries: int
    state: ShardState
    output: list[dict[str, Any]]


def interrupted_run(stage: Stage) -> tuple[Run, list[RecordedRequest], psutil.Process]:
    """Start a run, and return when its only shard is half done and waits for answers.

    No request is sent any more, since as many are out as may be; the next try meets a server that answers.
    """
    stage.write(ROWS)
    stage.server.script(HOLD)
    run = stage.run("patient")
    stage.wait_for_requests(run, answered=ANSWERED, in_flight=CONCURRENCY)
    pid = run.shard().pid
    assert pid is not None
    return run, stage.heal(), psutil.Process(pid)


def facts_of(stage: Stage, run: Run, before: list[RecordedRequest]) -> Facts:
    return Facts(
        run=run,
        before=before,
        ended=run.end(),
        after=stage.server.requests,
        tries=run.shard().try_number,
        state=run.shard_state(),
        output=stage.output(),
    )


class OnlyTheRestIsAsked:
    """What holds however the task ended."""

    def test_A27_the_next_try_asks_only_the_rest(self, facts: Facts) -> None:
        assert facts.ended == "success"
        assert facts.tries == 2
        paid = answered(facts.before)
        assert len(paid) == ANSWERED
        assert sorted(paid + asked(facts.after)) == ROWS

    def test_I1_requests_are_at_most_rows_and_those_in_flight(self, facts: Facts) -> None:
        assert len(facts.before) + len(facts.after) <= len(ROWS) + CONCURRENCY

    def test_A5_the_state_tells_what_was_reused(self, facts: Facts) -> None:
        assert (facts.state.reused, facts.state.requests) == (ANSWERED, len(ROWS) - ANSWERED)
        assert facts.state.rows_by_status == {"success": len(ROWS)}

    def test_the_output_is_complete_and_in_order(self, facts: Facts) -> None:
        assert [row["id"] for row in facts.output] == list(range(len(ROWS)))
        assert [row["answer"] for row in facts.output] == echoes(ROWS)


@dataclass(frozen=True, kw_only=True)
class KilledFacts(Facts):
    cleared: str
    cleared_requests: int
    summary: RunSummary
    results: dict[str, bytes]
    cleared_results: dict[str, bytes]


def killed_task(stage: Stage) -> KilledFacts:
    run, before, process = interrupted_run(stage)
    os.kill(process.pid, signal.SIGKILL)
    facts = facts_of(stage, run, before)
    results = stage.results()
    stage.heal()

    run.clear_all()

    return KilledFacts(
        **vars(facts),
        cleared=run.end(),
        cleared_requests=len(stage.server.requests),
        summary=run.summary(),
        results=results,
        cleared_results=stage.results(),
    )


class TestKilledTask(OnlyTheRestIsAsked):
    scene = staticmethod(killed_task)

    def test_A12_the_finished_run_can_be_cleared_and_costs_nothing(self, facts: KilledFacts) -> None:
        assert facts.cleared == "success"
        assert facts.cleared_requests == 0
        assert (facts.summary.requests, facts.summary.reused) == (0, len(ROWS))
        assert facts.summary.cost_usd == 0

    def test_A8_one_shard_is_merged_like_many(self, facts: KilledFacts) -> None:
        assert (facts.summary.shards, facts.summary.rows) == (1, len(ROWS))

    def test_A6_the_cleared_run_leaves_results_untouched(self, facts: KilledFacts) -> None:
        assert facts.cleared_results == facts.results


@dataclass(frozen=True, kw_only=True)
class ClearedFacts(Facts):
    label: str | None
    log: str


def task_cleared_while_it_runs(stage: Stage) -> ClearedFacts:
    run, before, process = interrupted_run(stage)
    label = run.shard().label
    run.clear("complete", 0)
    wait_until(lambda: not process.is_running(), timeout=300, what="the cleared task still runs")
    facts = facts_of(stage, run, before)
    return ClearedFacts(**vars(facts), label=label, log=run.log("complete", index=0))


class TestTaskClearedWhileItRuns(OnlyTheRestIsAsked):
    scene = staticmethod(task_cleared_while_it_runs)

    def test_it_stops_by_itself_before_it_would_be_killed(self, facts: ClearedFacts) -> None:
        assert "stopping (Airflow ended the task)" in facts.log
        assert f"The shard was interrupted: rows: {ANSWERED} success" in facts.log
        assert "SIGKILL" not in facts.log

    def test_A17_its_label_shows_while_it_runs(self, facts: ClearedFacts) -> None:
        label = "shard 0000 · rows 0-11 · "
        assert f'"event":"{label}' in facts.log
        if SHOWS_LABELS_EARLY:
            assert facts.label is not None
            assert facts.label.startswith(label)
