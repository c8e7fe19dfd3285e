"""A folder of files is counted by as many tasks, and is one dataset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.system.stage import SYSTEM, asked, echoes, leaks, rows

if TYPE_CHECKING:
    from airflow_llm_provider.testing.scripted_server import RecordedRequest
    from airflow_llm_provider.xcom import RunSummary
    from tests.system.stage import Stage

pytestmark = SYSTEM

FILES = (rows(0, 1, 2), rows(3), rows(4, 5))
ROWS = [text for file in FILES for text in file]
MAPPED = [*(("count", n) for n in range(3)), *(("complete", n) for n in range(4))]


@dataclass(frozen=True, kw_only=True)
class Facts:
    ended: str
    states: dict[tuple[str, int], str | None]
    labels: list[str | None]
    requests: list[RecordedRequest]
    output: list[dict[str, Any]]
    leaks: list[str]
    cleared: set[tuple[str, int]]
    ended_again: str
    later_requests: list[RecordedRequest]
    summary: RunSummary


def split_by_file(stage: Stage) -> Facts:
    for number, texts in enumerate(FILES):
        path = stage.folder / f"ds={number}" / "rows.parquet"
        path.parent.mkdir()
        pq.write_table(pa.table({"text": texts}), path)
    run = stage.run("by_file", source=f"{stage.folder}/ds=*/*.parquet", rows_per_shard=2)
    ended, states = run.end(), run.states()
    labels = [task.label for (name, _), task in sorted(run.tasks().items()) if name == "count"]
    output, traces, requests = stage.output(), run.traces(), stage.heal()

    cleared = run.clear("count", 1)

    return Facts(
        ended=ended,
        states=states,
        labels=labels,
        requests=requests,
        output=output,
        leaks=leaks(traces),
        cleared=cleared,
        ended_again=run.end(),
        later_requests=stage.server.requests,
        summary=run.summary(),
    )


class TestSplitByFile:
    scene = staticmethod(split_by_file)

    def test_every_file_is_counted_by_a_task(self, facts: Facts) -> None:
        assert facts.ended == "success"
        assert set(facts.states) == {("list", -1), ("plan", -1), ("merge", -1), *MAPPED}
        assert set(facts.states.values()) == {"success"}
        assert [str(label).split(" · ")[0] for label in facts.labels] == ["file 0", "file 1", "file 2"]

    def test_every_row_is_asked_once_and_comes_out_in_order(self, facts: Facts) -> None:
        assert sorted(asked(facts.requests)) == ROWS
        assert [row["answer"] for row in facts.output] == echoes(ROWS)
        assert [row["ds"] for row in facts.output] == ["0", "0", "0", "1", "2", "2"]

    def test_A18_no_row_is_to_be_read_anywhere(self, facts: Facts) -> None:
        assert facts.leaks == []

    def test_A6_a_cleared_count_costs_no_request(self, facts: Facts) -> None:
        assert {("count", 1), ("plan", -1), ("merge", -1)} <= facts.cleared
        assert ("count", 0) not in facts.cleared
        assert facts.ended_again == "success"
        assert facts.later_requests == []
        assert (facts.summary.requests, facts.summary.reused) == (0, len(ROWS))
