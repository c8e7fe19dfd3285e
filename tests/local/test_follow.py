"""Progress of a run, from the states of its tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_llm_provider.dataset.files.layout import Layout
from airflow_llm_provider.dataset.outcomes.journal import JournalWriter
from airflow_llm_provider.dataset.outcomes.record import Record
from airflow_llm_provider.engine.call import Outcome
from airflow_llm_provider.engine.status import RowStatus
from airflow_llm_provider.engine.usage import Usage
from airflow_llm_provider.local.demo.display import progress_display, progress_line
from airflow_llm_provider.local.demo.follow import Progress, RunFollower, describe
from airflow_llm_provider.local.rest import TaskInstance

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

SHARDS = [{"index": 0, "rows": 10, "tokens": 900}, {"index": 1, "rows": 5, "tokens": 400}]


def ti(
    task: str, state: str | None, index: int = -1, *, try_number: int = 1, label: str | None = None
) -> TaskInstance:
    return TaskInstance(
        task_id=task, map_index=index, state=state, label=label, try_number=try_number, pid=None
    )


def state(success: int, **others: int) -> dict:
    return {
        "rows_by_status": {"success": success, **others},
        "usage": {"prompt_tokens": 100, "completion_tokens": 7, "cached_tokens": 0},
    }


class FakeClient:
    """Answers what it was last given, and counts reads of XComs."""

    def __init__(self) -> None:
        self.instances: list[TaskInstance] = []
        self.xcoms: dict = {}
        self.reads: list = []

    def task_instances(self, dag_id, run_id):
        return self.instances

    def xcom(self, dag_id, run_id, task_id, *, key, map_index):
        self.reads.append((task_id, key, map_index))
        return self.xcoms.get((task_id, key, map_index))


class TestDescribe:
    def test_rows_are_unknown_before_the_split_has_ended(self) -> None:
        progress = describe([ti("g.split", "running"), ti("g.complete", None)], None, [], group_id="g")
        assert progress == Progress(step="counting tokens and cutting shards")

    def test_finished_shards_are_counted(self) -> None:
        instances = [
            ti("g.split", "success"),
            ti("g.complete", "success", 0),
            ti("g.complete", "running", 1),
            ti("g.merge", None),
        ]
        progress = describe(instances, SHARDS, [state(8, refused=2)], group_id="g")
        assert progress == Progress(
            step="asking the model: 1 shard at once",
            rows=15,
            rows_done=10,
            rows_answered=8,
            shards=2,
            shards_done=1,
            tokens=107,
        )

    def test_pending_rows_of_a_failed_shard_are_not_done(self) -> None:
        instances = [ti("g.complete", "up_for_retry", 1, label="shard 1")]
        progress = describe(instances, SHARDS, [state(3, pending=2)], group_id="g")
        assert progress.rows_done == 3
        assert progress.failed == ("g.complete [shard 1]",)

    def test_the_end_is_recognised(self) -> None:
        instances = [ti("g.split", "success"), ti("g.complete", "skipped"), ti("g.merge", "success")]
        assert describe(instances, [], [], group_id="g").step == "done"

    def test_other_tasks_are_named(self) -> None:
        assert describe([ti("collect", "running")], None, [], group_id="g").step == "running collect"


class TestRunFollower:
    def test_each_state_is_read_once_and_a_new_try_replaces_the_old(self) -> None:
        client = FakeClient()
        follower = RunFollower(client, "d", "r", "g")  # type: ignore[arg-type]
        client.xcoms = {
            ("g.split", "return_value", -1): SHARDS,
            ("g.complete", "shard_state", 0): state(4, pending=6),
        }
        client.instances = [ti("g.split", "success"), ti("g.complete", "failed", 0)]
        assert follower.look().rows_done == 4
        assert follower.look().rows_done == 4
        assert len(client.reads) == 2

        client.xcoms["g.complete", "return_value", 0] = state(10)
        client.instances = [ti("g.split", "success"), ti("g.complete", "success", 0, try_number=2)]
        assert follower.look().rows_done == 10

    def test_a_shard_that_pushed_nothing_is_still_done(self) -> None:
        client = FakeClient()
        client.instances = [ti("g.complete", "failed", 0)]
        progress = RunFollower(client, "d", "r", "g").look()  # type: ignore[arg-type]
        assert (progress.shards_done, progress.rows_done) == (1, 0)

    def test_a_shard_under_way_counts_the_rows_that_its_journal_has(self, tmp_path: Path) -> None:
        layout, client = Layout(f"file://{tmp_path}"), FakeClient()
        client.xcoms = {("g.split", "return_value", -1): [{"shard_id": "a" * 32, "rows": 10}]}
        client.instances = [ti("g.split", "success"), ti("g.complete", "queued", 0)]
        follower = RunFollower(client, "d", "r", "g", layout)  # type: ignore[arg-type]
        assert follower.look().rows_done == 0

        client.instances = [ti("g.split", "success"), ti("g.complete", "running", 0)]
        outcome = Outcome(
            index=0, status=RowStatus.SUCCESS, usage=Usage(prompt_tokens=20, completion_tokens=5), attempts=1
        )
        with JournalWriter(layout, "a" * 32) as journal:
            for n in (0, 1, 1):  # one of them by two tries
                journal.append(Record(bytes(16), n, outcome))
            progress = follower.look()
        assert (progress.rows_done, progress.rows_answered, progress.tokens) == (2, 2, 50)

        layout.storage.delete_folder(
            layout.journal("a" * 32)
        )  # the results are in place, the task is not over
        assert follower.look().rows_done == 2
        client.xcoms["g.complete", "return_value", 0] = state(9, refused=1)
        client.instances = [ti("g.split", "success"), ti("g.complete", "success", 0)]
        progress = follower.look()
        assert (progress.rows_done, progress.rows_answered, progress.tokens) == (10, 9, 107)


class TestLines:
    def test_rows_make_a_line_each_tenth_and_whatever_else_changes_makes_one(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with progress_display(terminal=False) as show:
            for done in range(41):
                show(Progress(step="asking", rows=40, shards=1, rows_done=done, tokens=done * 7))
            show(Progress(step="merging", rows=40, shards=1, rows_done=40, shards_done=1))
        rows = [line.split(" · ")[1] for line in capsys.readouterr().out.splitlines()]
        assert rows == [f"{done} of 40 rows" for done in (*range(0, 41, 4), 40)]


class TestProgressLine:
    def test_it_says_what_there_is(self) -> None:
        assert progress_line(Progress(step="starting")) == "starting"
        assert (
            progress_line(
                Progress(
                    step="merging",
                    rows=1500,
                    rows_done=1500,
                    rows_answered=1499,
                    shards=3,
                    shards_done=3,
                    tokens=12345,
                    failed=("g.complete [shard 1]",),
                )
            )
            == "merging · 1,500 of 1,500 rows · 3 of 3 shards · 1 without an answer · 12,345 tokens · "
            "failed: g.complete [shard 1]"
        )
