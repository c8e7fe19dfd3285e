"""The source changes between two runs of the split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.system.stage import SYSTEM, asked, echoes, rows

if TYPE_CHECKING:
    from airflow_llm_provider.testing.scripted_server import RecordedRequest
    from airflow_llm_provider.xcom import RunSummary
    from tests.system.stage import Stage

pytestmark = SYSTEM

ROWS = rows(*range(1, 5))
[NEW] = rows(0)


@dataclass(frozen=True, kw_only=True)
class Facts:
    requests: list[RecordedRequest]
    cleared: set[tuple[str, int]]
    ended: str
    states: dict[tuple[str, int], str | None]
    later_requests: list[RecordedRequest]
    summary: RunSummary
    output: list[dict[str, Any]]


def prepended_row(stage: Stage) -> Facts:
    stage.write(ROWS)
    run = stage.run("strict", rows_per_shard=2)
    assert run.end() == "success"
    requests = stage.heal()
    stage.write([NEW, *ROWS])

    cleared = run.clear("split")

    return Facts(
        requests=requests,
        cleared=cleared,
        ended=run.end(),
        states=run.states(),
        later_requests=stage.server.requests,
        summary=run.summary(),
        output=stage.output(),
    )


class TestPrependedRow:
    scene = staticmethod(prepended_row)

    def test_A3_exactly_the_new_row_is_asked(self, facts: Facts) -> None:
        assert sorted(asked(facts.requests)) == ROWS
        assert asked(facts.later_requests) == [NEW]
        assert (facts.summary.requests, facts.summary.reused) == (1, len(ROWS))

    def test_A3_every_shard_has_shifted_and_one_more_is_mapped(self, facts: Facts) -> None:
        assert facts.cleared == {("split", -1), ("complete", 0), ("complete", 1), ("merge", -1)}
        assert facts.ended == "success"
        assert facts.states == {
            ("split", -1): "success",
            ("complete", 0): "success",
            ("complete", 1): "success",
            ("complete", 2): "success",
            ("merge", -1): "success",
        }

    def test_the_output_has_the_new_row_first(self, facts: Facts) -> None:
        assert [row["answer"] for row in facts.output] == echoes([NEW, *ROWS])
