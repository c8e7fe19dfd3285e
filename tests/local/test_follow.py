"""Progress of a run, from the states of its tasks."""

from __future__ import annotations

from airflow_llm_provider.local.demo.display import progress_line
from airflow_llm_provider.local.demo.follow import Progress, RunFollower, describe
from airflow_llm_provider.local.rest import TaskInstance

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
