"""One of five shards fails, is mended and cleared alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_llm_provider.testing.scripted_server import Rule
from tests.system.stage import API_KEY, ROW_TEXT, SYSTEM, answered, asked, echoes, leaks, rows

if TYPE_CHECKING:
    from airflow_llm_provider.local.rest import TaskInstance
    from airflow_llm_provider.testing.scripted_server import RecordedRequest
    from airflow_llm_provider.xcom import RunSummary, ShardState
    from tests.system.stage import Run, Stage

pytestmark = SYSTEM

ROWS = rows(*range(10))


@dataclass(frozen=True, kw_only=True)
class Facts:
    run: Run
    failed: str
    tasks: dict[tuple[str, int], TaskInstance]
    state: ShardState
    notice: str
    traces: dict[str, str]
    requests: list[RecordedRequest]
    results: dict[str, bytes]
    cleared: set[tuple[str, int]]
    ended: str
    tries: dict[tuple[str, int], int]
    later_requests: list[RecordedRequest]
    later_results: dict[str, bytes]
    later_state: ShardState
    summary: RunSummary
    output: list[dict[str, Any]]


def one_of_five_shards_fails(stage: Stage) -> Facts:
    stage.write(ROWS)
    refusal = {"error": {"message": f"I choke on {ROW_TEXT}, dear {API_KEY}", "code": "server_error"}}
    stage.server.script(Rule(contains=ROWS[5], status=500, body=refusal))
    run = stage.run("strict", rows_per_shard=2)
    failed, tasks, state = run.end(), run.tasks(), run.shard_state(2, failed=True)
    notice = (stage.folder / "notice.txt").read_text(encoding="utf-8")
    traces, results = run.traces(), stage.results()
    requests = stage.heal()

    cleared = run.clear("complete", 2)

    return Facts(
        run=run,
        failed=failed,
        tasks=tasks,
        state=state,
        notice=notice,
        traces=traces,
        requests=requests,
        results=results,
        cleared=cleared,
        ended=run.end(),
        tries={key: ti.try_number for key, ti in run.tasks().items()},
        later_requests=stage.server.requests,
        later_results=stage.results(),
        later_state=run.shard_state(2),
        summary=run.summary(),
        output=stage.output(),
    )


class TestOneOfFiveShardsFails:
    scene = staticmethod(one_of_five_shards_fails)

    def test_the_others_succeed_and_merge_does_not_run(self, facts: Facts) -> None:
        assert facts.failed == "failed"
        assert {key: ti.state for key, ti in facts.tasks.items()} == {
            ("split", -1): "success",
            ("complete", 0): "success",
            ("complete", 1): "success",
            ("complete", 2): "failed",
            ("complete", 3): "success",
            ("complete", 4): "success",
            ("merge", -1): "upstream_failed",
        }
        assert sorted(asked(facts.requests)) == ROWS
        assert len(facts.results) == 4

    def test_its_state_is_in_xcom_and_sums(self, facts: Facts) -> None:
        state = facts.state
        assert (state.status, dict(state.rows_by_status)) == ("failed", {"success": 1, "error": 1})
        assert sum(state.rows_by_status.values()) == state.shard.rows == 2
        assert state.requests == 2
        assert sum(state.errors.values()) == 1
        assert state.message is not None
        assert "failure_threshold" in state.message

    def test_its_callback_can_tell_what_failed_without_row_text_and_key(self, facts: Facts) -> None:
        which, counts, errors, *_ = facts.notice.splitlines()
        assert which == f"strict · ask.complete[2] · {facts.run.run_id} · try 1"
        assert "failed; 1 success, 1 error; 2 requests, 0 answers reused" in counts
        assert errors == "errors: 1 http_500"
        assert leaks({"the notice": facts.notice}) == []

    def test_no_row_text_and_no_key_can_be_read_in_airflow(self, facts: Facts) -> None:
        assert {"XCom shard_state of ask.complete[2]", "log 1 of ask.complete[2]"} <= facts.traces.keys()
        assert len([name for name in facts.traces if name.startswith("log")]) == 6
        assert leaks(facts.traces) == []

    def test_A17_the_grid_shows_every_shard_by_its_label_also_the_failed_one(self, facts: Facts) -> None:
        labels = [ti.label for key, ti in sorted(facts.tasks.items()) if key[0] == "complete"]
        assert [label.rpartition(" · ")[0] for label in labels if label] == [
            "shard 0000 · rows 0-1",
            "shard 0001 · rows 2-3",
            "shard 0002 · rows 4-5",
            "shard 0003 · rows 6-7",
            "shard 0004 · rows 8-9",
        ]

    def test_A6_clearing_it_runs_it_and_merge_only(self, facts: Facts) -> None:
        assert facts.cleared == {("complete", 2), ("merge", -1)}
        assert facts.ended == "success"
        assert {key for key, tries in facts.tries.items() if tries > 1} == {("complete", 2)}

    def test_A6_no_answered_row_is_asked_again(self, facts: Facts) -> None:
        assert asked(facts.later_requests) == [ROWS[5]]
        assert sorted(answered(facts.requests) + answered(facts.later_requests)) == ROWS
        assert (facts.later_state.reused, facts.later_state.requests) == (1, 1)

    def test_A6_results_of_its_siblings_are_untouched(self, facts: Facts) -> None:
        assert len(facts.later_results) == 5
        assert facts.results.items() <= facts.later_results.items()

    def test_the_output_has_every_row_in_order(self, facts: Facts) -> None:
        assert [row["id"] for row in facts.output] == list(range(10))
        assert [row["answer"] for row in facts.output] == echoes(ROWS)
        assert facts.summary.rows_by_status == {"success": 10}
        assert facts.summary.requests == 10 - 2 + 1
