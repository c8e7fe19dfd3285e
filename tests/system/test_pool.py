"""A pool slot is one request in flight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_llm_provider.testing.scripted_server import Rule
from tests.system.stage import SYSTEM, asked, rows

if TYPE_CHECKING:
    from tests.system.stage import Stage

pytestmark = SYSTEM

ROWS = rows(*range(12))
SLOTS = 4
#: Long enough that a second shard starts while the first one waits.
HOLD = Rule(times=SLOTS, delay=30)


@dataclass(frozen=True, kw_only=True)
class Facts:
    running: list[str | None]
    ended: str
    asked: list[str]
    stats: dict[str, Any]


def more_shards_than_slots(stage: Stage) -> Facts:
    stage.client.put_pool("four", SLOTS)
    stage.write(ROWS)
    stage.server.script(HOLD)
    run = stage.run("crowded", rows_per_shard=2)
    stage.wait_for_requests(run, answered=0, in_flight=SLOTS)
    states = run.states()
    return Facts(
        running=[state for (task, _), state in states.items() if task == "complete" and state == "running"],
        ended=run.end(),
        asked=asked(stage.server.requests),
        stats=stage.server.stats(),
    )


class TestMoreShardsThanSlots:
    scene = staticmethod(more_shards_than_slots)

    def test_A13_as_many_shards_run_as_their_requests_fit(self, facts: Facts) -> None:
        assert len(facts.running) == 2

    def test_A14_no_more_requests_are_in_flight_than_the_pool_has_slots(self, facts: Facts) -> None:
        assert facts.stats["max_in_flight"] == SLOTS

    def test_all_shards_get_their_turn(self, facts: Facts) -> None:
        assert facts.ended == "success"
        assert sorted(facts.asked) == ROWS
