"""A night without rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from tests.system.stage import SYSTEM

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_llm_provider.xcom import RunSummary
    from tests.system.stage import Stage

pytestmark = SYSTEM


@dataclass(frozen=True, kw_only=True)
class Facts:
    ended: list[str]
    states: list[dict[tuple[str, int], str | None]]
    outputs: list[pa.Table]
    summary: RunSummary
    requests: int


def empty_source(stage: Stage) -> Facts:
    stage.write([])
    run = stage.run("patient")
    ended, states, outputs = [], [], []
    for clear in (False, True):
        if clear:
            run.clear_all()
        ended.append(run.end())
        states.append(run.states())
        outputs.append(pq.read_table(stage.destination))
    return Facts(
        ended=ended,
        states=states,
        outputs=outputs,
        summary=run.summary(),
        requests=len(stage.server.requests),
    )


class TestEmptySource:
    scene = staticmethod(empty_source)

    def test_A2_the_run_is_green_and_so_it_is_when_cleared(self, facts: Facts) -> None:
        assert facts.ended == ["success", "success"]
        assert facts.states[0] == facts.states[1]
        assert facts.states[0]["complete", -1] == "skipped"
        assert facts.states[0]["merge", -1] == "success"

    def test_A2_an_empty_output_with_the_schema_is_there(self, facts: Facts) -> None:
        for output in facts.outputs:
            assert output.num_rows == 0
            assert output.column_names[:4] == ["text", "id", "answer", "llm_status"]
            assert output.schema.field("id").type == "int64"

    def test_A2_the_summary_says_0_rows(self, facts: Facts) -> None:
        assert (facts.summary.rows, facts.summary.shards, facts.summary.rows_by_status) == (0, 0, {})
        assert facts.requests == 0
