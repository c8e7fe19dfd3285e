"""A job over a part of its source."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from airflow_llm_provider.dataset import read_results
from airflow_llm_provider.errors import LLMInputError
from airflow_llm_provider.jobs import SplitOptions, run_dataset, split

TEXTS = [f"row {n}" for n in range(12)]


class TestSelection:
    def test_the_output_has_the_rows_and_columns_that_were_taken(self, job):
        job.write(TEXTS, id=range(12), lang=["de", "en", None] * 4)
        summary = job.run(columns=["id"], where="lang = 'en' OR lang IS NULL", limit=7, max_rows_per_shard=3)
        assert summary.rows == 7
        assert job.calls == [text for n, text in enumerate(TEXTS) if n % 3][:7]
        rows = job.output()
        assert [row["id"] for row in rows] == [1, 2, 4, 5, 7, 8, 10]
        assert [row["answer"] for row in rows] == [f"answer to {text}" for text in job.calls]
        assert "text" not in rows[0]
        assert "lang" not in rows[0]
        manifest = json.loads(Path(summary.manifest).read_text())
        assert manifest["rows"] == 7
        assert manifest["selection"] == {
            "columns": ["id"],
            "where": "lang = 'en' OR lang IS NULL",
            "limit": 7,
            "rows_left_out": 4,
            "files_skipped": 0,
        }

    def test_rejected_rows_have_the_same_columns(self, job):
        job.write(["a", None], id=[1, 2])
        summary = job.run(columns=["id"])
        assert pq.read_schema(summary.rejects).names[:2] == ["id", "answer"]
        assert pq.read_table(summary.rejects).column("id").to_pylist() == [2]

    def test_I2_another_selection_asks_no_row_again(self, job):
        job.write(TEXTS, id=range(12), lang=["de", "en", None] * 4)
        job.run(where="id >= 6")
        job.requests()
        job.run(columns=["lang", "id"])
        assert job.calls == TEXTS[:6]
        job.requests()
        job.run(columns=["id", "lang"], where="id < 100")
        assert job.calls == []

    def test_plans_differ_by_their_columns_and_not_by_the_words_of_a_condition(self, job):
        job.write(TEXTS, id=range(12))
        whole = job.split().plan_id
        assert job.split(where="id >= 0").plan_id == whole
        assert job.split(columns=["id"]).plan_id != whole
        assert job.split(columns=["id"]).plan_id != job.split(columns=["id", "text"]).plan_id

    def test_a_column_named_as_the_answer_can_be_left_out(self, job):
        job.write(TEXTS, answer=TEXTS, id=range(12))
        with pytest.raises(LLMInputError, match="columns named as the answer columns"):
            job.split()
        assert job.run(columns=["id"]).rows == 12

    def test_an_empty_file_has_the_columns_that_are_named(self, job, tmp_path):
        (tmp_path / "in.csv").write_bytes(b"")
        result = split(
            job.spec,
            str(tmp_path / "in.csv"),
            job.destination,
            options=SplitOptions(columns=["id"], where="lang = 5"),
        )
        assert result.estimate.rows == 0

    @pytest.mark.parametrize("columns", [[], "id", ["id", "id"], [1]])
    def test_columns_that_are_no_list_of_names_are_refused(self, columns):
        with pytest.raises(LLMInputError, match="give a list of names, at least one and each once"):
            SplitOptions(columns=columns)

    def test_run_dataset_takes_the_same(self, job, tmp_path):
        job.write(TEXTS, id=range(12))
        out = str(tmp_path / "whole")
        taken = {"columns": ["id"], "limit": 2, "client": job.client, "clock": job.clock}
        assert run_dataset(job.spec, job.source, out, where="id IN (3, 5, 7)", **taken).rows == 2
        assert read_results(out).select(["id", "answer"]).to_pylist() == [
            {"id": 3, "answer": "answer to row 3"},
            {"id": 5, "answer": "answer to row 5"},
        ]
        job.requests()
        options = SplitOptions(where="id < 3", max_rows_per_shard=1)
        summary = run_dataset(
            job.spec, job.source, out, where=pc.field("id") > 5, split_options=options, **taken
        )
        assert (summary.rows, summary.shards) == (2, 2)
        assert job.calls == TEXTS[6:8]

    @pytest.mark.parametrize("limit", [0, 10**30, True, "7"])
    def test_a_limit_that_is_no_number_of_rows_is_refused(self, limit):
        with pytest.raises(LLMInputError, match=f"limit is {limit!r}: give a whole number of at least 1, at"):
            SplitOptions(limit=limit)

    def test_run_dataset_takes_no_option_of_the_split_in_vain(self, job, tmp_path):
        job.write(TEXTS)
        taken = {"client": job.client, "clock": job.clock, "split_options": SplitOptions(where="text <> 'x'")}
        summary = run_dataset(job.spec, job.source, str(tmp_path / "a"), shard_tokens=1, **taken)
        assert summary.shards == len(TEXTS)
        job.requests()
        spec = dataclasses.replace(job.spec, model="a-model-without-a-price")
        with pytest.raises(LLMInputError, match="max_cost_usd"):
            run_dataset(spec, job.source, str(tmp_path / "b"), max_cost_usd=1.0, **taken)
        assert (job.calls, (tmp_path / "b").exists()) == ([], False)

    def test_run_dataset_has_no_dry_run_and_says_so_before_it_reads(self, job):
        with pytest.raises(LLMInputError, match="call split"):
            run_dataset(job.spec, "not there", job.destination, split_options=SplitOptions(dry_run=True))
