"""A job over a table in memory."""

from __future__ import annotations

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from airflow_llm_provider.dataset.sources.memory import MemorySource
from airflow_llm_provider.dataset.sources.selection import Selection
from airflow_llm_provider.errors import LLMInputError
from airflow_llm_provider.jobs import SplitOptions, run_dataset, split

ROWS = {"id": [1, 2, 3], "text": ["a", None, "c"]}


class TestMemory:
    def test_rows_in_memory_are_selected_like_those_of_files(self):
        selection = Selection(MemorySource(pa.table(ROWS)), columns=["text"], where="id >= 2", limit=5)
        assert [batch.to_pylist() for batch in selection.batches()] == [[{"text": None}, {"text": "c"}]]
        assert selection.report["rows_left_out"] == 1

    def test_run_dataset_takes_a_frame_and_asks_nothing_twice(self, job):
        frame = pd.DataFrame(ROWS)
        answers = {"client": job.client, "clock": job.clock}
        first = run_dataset(job.spec, frame, job.destination, **answers)
        assert (first.rows, first.requests) == (3, 2)
        assert [row["answer"] for row in job.output()] == ["answer to a", None, "answer to c"]
        again = run_dataset(job.spec, pl.from_pandas(frame), job.destination, **answers)
        assert (again.rows, again.requests) == (3, 0)

    def test_a_path_object_is_a_path(self, job, tmp_path):
        (tmp_path / "a.csv").write_text("text\na\n")
        assert split(job.spec, tmp_path / "a.csv", job.destination).estimate.rows == 1

    def test_there_are_no_files_to_split_by(self, job):
        with pytest.raises(LLMInputError, match="split_by is 'file', and the source is in memory"):
            split(job.spec, pa.table(ROWS), job.destination, options=SplitOptions(split_by="file"))
