"""The table at the demo's end."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from airflow_llm_provider.engine.usage import Usage
from airflow_llm_provider.local.demo.display import table_width
from airflow_llm_provider.local.demo.result import (
    counts_table,
    local_path,
    read_rows,
    readable_log,
    result_table,
)
from airflow_llm_provider.local.demo.run import _ANSWERED, _ASKED, DemoResult
from airflow_llm_provider.xcom import RunSummary


def summary(**changes) -> RunSummary:
    values = {
        "plan_id": "p",
        "destination": "file:///srv/my home/out",
        "manifest": "file:///srv/my home/out/_manifest.json",
        "rows": 3,
        "rows_by_status": {"success": 3},
        "shards": 2,
        "requests": 4,
        "retries": 1,
        "usage": Usage(prompt_tokens=1234, completion_tokens=56),
    }
    return RunSummary(**{**values, **changes})


class TestReadRows:
    def test_all_files_are_read_in_order_and_paths_give_no_columns(self, tmp_path: Path) -> None:
        folder = tmp_path / "ds=2026-01-01"
        folder.mkdir()
        files = []
        for number in range(2):
            path = folder / f"part-{number}.parquet"
            pq.write_table(pa.table({"name": [f"a{number}", f"b{number}"], "more": [1, 2]}), path)
            files.append(f"file://{path}")
        assert read_rows(files, ["name"]) == [{"name": name} for name in ("a0", "b0", "a1", "b1")]


class TestResultTable:
    def test_long_and_marked_up_values_stay_on_one_line(self) -> None:
        rows = [{"name": "[bold]a", "summary": "x\n" * 90, "status": None}]
        lines = result_table(rows, ["name", "summary"], ["status"], 100).splitlines()
        assert len(lines) == 3
        assert lines[2].startswith("[bold]a")
        assert "…" in lines[2]

    @pytest.mark.parametrize("width", [80, 100])
    def test_the_answers_are_whole_beside_a_long_summary_and_every_line_fits(self, width: int) -> None:
        row = {"name": "airflow-llm-provider", "summary": "x" * 90, "category": "packaging"}
        row |= {"audience": "library authors", "llm_status": "success"}
        lines = result_table([row], _ASKED, _ANSWERED, width).splitlines()
        assert max(map(len, lines)) == width
        heading, _, line = lines
        assert heading.split() == [*_ASKED, *_ANSWERED]
        assert line.startswith("airflow-llm-p")
        assert line.split()[2:] == ["packaging", "library", "authors", "success"]

    def test_backslashes_before_brackets_are_shown_as_they_are(self) -> None:
        text = result_table([{"name": value} for value in (r"a \[/foo] b", r"\[bold]c")], ["name"], [], 100)
        assert r"a \[/foo] b" in text
        assert r"\[bold]c" in text

    def test_what_is_left_out_is_counted(self) -> None:
        text = result_table([{"name": str(number)} for number in range(40)], ["name"], [], 100)
        assert "… 28 more" in text


class TestTableWidth:
    def test_is_the_terminals_and_without_one_a_hundred(self) -> None:
        assert table_width(Console(file=io.StringIO(), force_terminal=True, width=72)) == 72
        assert table_width(Console(file=io.StringIO(), width=200)) == 100


class TestCountsTable:
    def test_an_unknown_cost_is_not_zero(self) -> None:
        text = counts_table(summary(), 12.4, 100)
        assert "unknown" in text
        assert "1,234 in, 56 out" in text
        assert "4, 1 of them retries" in text

    def test_a_known_cost_is_shown(self) -> None:
        assert "0.0120 USD" in counts_table(summary(cost_usd=0.012), 1, 100)


class TestDemoResult:
    def test_the_last_line_has_what_scripts_read(self) -> None:
        assert DemoResult(summary=summary(), seconds=61.26).to_json() == {
            "demo": "ok",
            "rows": 3,
            "succeeded": 3,
            "shards": 2,
            "requests": 4,
            "seconds": 61.3,
            "output": "/srv/my home/out",
        }

    def test_one_row_without_an_answer_is_a_failure(self) -> None:
        result = DemoResult(summary=summary(rows_by_status={"success": 2, "truncated": 1}), seconds=1)
        assert not result.ok
        assert result.to_json()["demo"] == "failed"

    def test_no_rows_are_no_success(self) -> None:
        assert not DemoResult(summary=summary(rows=0, rows_by_status={}), seconds=1).ok


class TestReadableLog:
    def test_errors_are_told_with_their_exception(self) -> None:
        records = [
            {"level": "info", "event": "::group::"},
            {
                "level": "error",
                "event": "Task failed with exception",
                "error_detail": [{"exc_type": "LLMInputError", "exc_value": "no column 'x'", "frames": []}],
            },
        ]
        log = "\n".join(json.dumps(record) for record in records)
        assert readable_log(log) == "error: Task failed with exception\n  LLMInputError: no column 'x'"

    def test_a_log_without_errors_shows_its_end(self) -> None:
        log = "\n".join(json.dumps({"level": "info", "event": str(number)}) for number in range(30))
        assert readable_log(log, 2) == "info: 28\ninfo: 29"


class TestLocalPath:
    def test_urls_and_paths_are_understood(self) -> None:
        assert local_path("file:///a b/c%20d") == Path("/a b/c%20d")
        assert local_path("/a b") == Path("/a b")
