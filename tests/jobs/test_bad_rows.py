"""Rows that are not asked, or get no answer: each is one row, and the others go on."""

from __future__ import annotations

import math
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_llm_provider.engine.call import CallError, FailureKind
from airflow_llm_provider.engine.status import RowStatus
from airflow_llm_provider.errors import (
    LLMFailureThresholdError,
    LLMInputError,
)
from airflow_llm_provider.jobs import merge, split
from airflow_llm_provider.spec import CompletionSpec

TEXTS = [f"row {n}" for n in range(12)]


class TestBadRows:
    def test_D6_null_nan_and_blank_rows_are_not_sent(self, tmp_path, job):
        table = pa.table({"text": ["hi", None, "  ", "x"], "score": [1.0, math.nan, math.nan, 2.0]})
        pq.write_table(table, job.source)
        job.spec = CompletionSpec(model="m", prompt="{{ text }} {{ score }}")
        summary = job.run()
        assert summary.rows_by_status == {"success": 2, "empty_input": 2}
        assert job.requests() == 2
        assert not any("nan" in call for call in job.calls)

    def test_E12_one_row_that_cannot_be_rendered_is_one_row(self, job):
        job.write(["2", "0", "4"])
        job.spec = CompletionSpec(model="m", prompt="{{ 8 // (text | int) }}")
        summary = job.run()
        assert summary.rows_by_status == {"success": 2, "rejected": 1}
        assert [row["llm_status"] for row in job.output()] == ["success", "rejected", "success"]

    def test_E12_a_prompt_that_renders_for_no_row_stops_before_anything_is_written(self, job, tmp_path):
        job.write(["0", "0"])
        job.spec = CompletionSpec(model="m", prompt="{{ 8 // (text | int) }}")
        with pytest.raises(LLMInputError, match="cannot be rendered for any of the 2 rows"):
            job.run()
        assert not (tmp_path / "out").exists()

    def test_C16_a_row_beyond_the_context_window_is_set_aside_before_any_call(self, job):
        job.write(["short", "long " * 500, "short too"])
        job.spec = CompletionSpec(
            model="gpt-4o", prompt="{{ text }}", max_output_tokens=10, context_window=100
        )
        summary = job.run()
        assert summary.rows_by_status == {"success": 2, "context_too_long": 1}
        assert len(job.calls) == 2

    @pytest.mark.parametrize(
        "status", [RowStatus.CONTENT_FILTER, RowStatus.CONTEXT_TOO_LONG, RowStatus.REJECTED]
    )
    def test_C15_C16_a_row_that_the_endpoint_refuses_is_one_row(self, job, status):
        job.write(TEXTS)
        job.answer = lambda call: (
            CallError(FailureKind.ROW, status.value, "no", row_status=status)
            if call.body["messages"][-1]["content"] == "row 5"
            else "yes"
        )
        assert job.run().rows_by_status == {"success": 11, status.value: 1}
        assert job.requests() == 12

    def test_rows_that_are_all_too_long_are_a_wrong_setting(self, job):
        job.write(["long " * 500, "longer " * 500])
        job.spec = CompletionSpec(
            model="gpt-4o", prompt="{{ text }}", max_output_tokens=10, context_window=100
        )
        with pytest.raises(LLMFailureThresholdError, match="2 context_too_long"):
            job.run()

    def test_a_date_that_python_cannot_hold_is_an_error_that_names_the_column(self, job):
        far = pa.array([400_000_000_000], pa.timestamp("s"))
        pq.write_table(pa.table({"day": far}), job.source)
        job.spec = CompletionSpec(model="m", prompt="{{ day }}")
        with pytest.raises(LLMInputError, match=r"column 'day'.*OverflowError"):
            job.run()

    @pytest.mark.timeout(60)
    def test_a_pipe_in_the_source_folder_is_passed_over(self, job, tmp_path):
        (tmp_path / "in").mkdir()
        (tmp_path / "in" / "a.csv").write_text("text\nx\ny\n")
        os.mkfifo(tmp_path / "in" / "b.csv")
        assert split(job.spec, str(tmp_path / "in"), job.destination).estimate.rows == 2
        with pytest.raises(LLMInputError, match="neither a file nor a folder"):
            split(job.spec, str(tmp_path / "in" / "b.csv"), job.destination)

    def test_a_shard_of_one_bad_row_does_not_fail_the_night(self, job):
        job.write(TEXTS)
        job.answer = lambda call: (
            CallError(FailureKind.ROW, "rejected", "no")
            if call.body["messages"][-1]["content"] == "row 5"
            else "yes"
        )
        assert job.run(max_rows_per_shard=1).rows_by_status == {"success": 11, "rejected": 1}


class TestBlankRows:
    def test_do_not_soften_the_failure_threshold(self, job):
        job.write([None] * 90 + [f"row {n}" for n in range(10)])
        job.answer = lambda call: (
            CallError(FailureKind.ROW, "rejected", "no")
            if call.body["messages"][-1]["content"] in {f"row {n}" for n in range(0, 10, 2)}
            else "yes"
        )
        with pytest.raises(LLMFailureThresholdError, match=r"5 of 10 rows \(50.0%\)"):
            job.run(complete={"failure_threshold": 0.1})

    def test_do_not_soften_the_threshold_of_the_run(self, job):
        job.write([None] * 90 + [f"row {n}" for n in range(10)])
        job.answer = lambda call: (
            CallError(FailureKind.ROW, "rejected", "no")
            if call.body["messages"][-1]["content"] == "row 1"
            else "yes"
        )
        result = job.split()
        job.shard_run(result.references[0]).run()
        with pytest.raises(LLMFailureThresholdError, match=r"1 of 10 rows \(10.0%\)"):
            merge(result.plan_uri, failure_threshold=0.05)
