"""A pool slot is one request in flight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx

from airflow_llm_provider.local.rest import wait_until
from airflow_llm_provider.testing.scripted_server import Rule
from tests.system.stage import SYSTEM, asked, rows

if TYPE_CHECKING:
    from tests.system.stage import Stage

pytestmark = SYSTEM

ROWS = rows(*range(6))
SLOTS = 4
#: However long it takes until a second shard starts while the first one waits.
HOLD = Rule(times=SLOTS, held=True)


@dataclass(frozen=True, kw_only=True)
class Facts:
    running: list[str | None]
    ended: str
    asked: list[str]
    most_in_flight: int


def more_shards_than_slots(stage: Stage) -> Facts:
    stage.client.put_pool("four", SLOTS)
    stage.write(ROWS)
    stage.server.script(HOLD)
    run = stage.run("crowded", rows_per_shard=2)
    stage.wait_for_requests(run, answered=0, in_flight=SLOTS)
    states, most = run.states(), stage.server.stats()["max_in_flight"]
    before = stage.heal()
    return Facts(
        running=[state for (task, _), state in states.items() if task == "complete" and state == "running"],
        ended=run.end(),
        asked=asked(before + stage.server.requests),
        most_in_flight=max(most, stage.server.stats()["max_in_flight"]),
    )


@dataclass(frozen=True, kw_only=True)
class Refused:
    ended: str
    tries: int
    log: str
    requests: int
    written: bool
    told_later: tuple[int, str]
    run_id: str
    notice: str


def refused(stage: Stage, dag_id: str) -> Refused:
    stage.client.put_pool("four", SLOTS)
    stage.write(ROWS)
    run = stage.run(dag_id)
    ended = run.end()
    path = f"/dags/{dag_id}/dagRuns/{run.run_id}/taskInstances/ask.split"
    query = {"pool": "four", "task_instance": stage.client.call("GET", path)["id"]}
    told = httpx.get(f"{stage.airflow.url}/llm-pools/", params=query, trust_env=False)
    return Refused(
        ended=ended,
        tries=run.tasks()["split", -1].try_number,
        log=run.log("split"),
        requests=len(stage.server.requests),
        written=stage.destination.exists(),
        told_later=(told.status_code, told.text),
        run_id=run.run_id,
        notice=notice_of(stage) if dag_id == "cramped" else "",
    )


def notice_of(stage: Stage) -> str:
    """Wait for the callback of the DAG, which the DAG processor runs after the run has ended."""
    path = stage.folder / "notice.txt"

    def there() -> bool:
        if path.exists() and path.stat().st_size > 0:
            return True
        # A callback that comes while the file is parsed waits until that is parsed again, which is soon if it has changed.
        (stage.folder.parent / "dags" / "dataset_jobs.py").touch()
        return False

    wait_until(there, timeout=600, what="the callback of the DAG was not run", poll=10.0)
    return path.read_text(encoding="utf-8")


def pool_is_missing(stage: Stage) -> Refused:
    return refused(stage, "poolless")


def pool_is_too_small(stage: Stage) -> Refused:
    return refused(stage, "cramped")


class FailsAtOnce:
    """What holds for a pool in which no shard could ever start."""

    def test_the_run_fails_without_a_retry(self, facts: Refused) -> None:
        assert (facts.ended, facts.tries) == ("failed", 1)

    def test_nothing_was_asked_or_written(self, facts: Refused) -> None:
        assert (facts.requests, facts.written) == (0, False)

    def test_whoever_is_no_running_task_is_told_nothing(self, facts: Refused) -> None:
        status, text = facts.told_later
        assert status == 403
        assert "slots" not in text


class TestPoolIsMissing(FailsAtOnce):
    scene = staticmethod(pool_is_missing)

    def test_A15_the_split_says_so_and_what_to_do(self, facts: Refused) -> None:
        assert "pool 'nowhere' does not exist, so ask.complete would wait for ever" in facts.log
        assert "airflow pools set nowhere 16" in facts.log


class TestPoolIsTooSmall(FailsAtOnce):
    scene = staticmethod(pool_is_too_small)

    def test_the_callback_of_the_dag_is_told_of_it(self, facts: Refused) -> None:
        assert facts.notice.splitlines() == [
            f"cramped · ask.split · {facts.run_id} · try 1",
            "the run: task_failure",
        ]

    def test_A15_the_split_says_so_and_what_to_do(self, facts: Refused) -> None:
        assert "pool 'four' has 4 slots, and one shard of ask.complete takes 5" in facts.log
        assert "give the pool at least 5 slots, or lower concurrency to 4" in facts.log


class TestMoreShardsThanSlots:
    scene = staticmethod(more_shards_than_slots)

    def test_A13_as_many_shards_run_as_their_requests_fit(self, facts: Facts) -> None:
        assert len(facts.running) == 2

    def test_A14_no_more_requests_are_in_flight_than_the_pool_has_slots(self, facts: Facts) -> None:
        assert facts.most_in_flight == SLOTS

    def test_all_shards_get_their_turn(self, facts: Facts) -> None:
        assert facts.ended == "success"
        assert sorted(facts.asked) == ROWS
