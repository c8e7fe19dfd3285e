"""B14: state that somebody has edited, or that has rotted, is refused before anything is asked."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_llm_provider.errors import LLMStateError
from airflow_llm_provider.jobs import merge

TEXTS = [f"row {n}" for n in range(6)]


def only(job, folder):
    [path] = Path(job.destination, "_llm", folder).iterdir()
    return path


def flip(path, name):
    """Flip a bit in the last page of a column."""
    file = pq.ParquetFile(path)
    column = file.metadata.row_group(0).column(file.schema_arrow.get_field_index(name))
    start = column.dictionary_page_offset or column.data_page_offset
    whole = bytearray(path.read_bytes())
    whole[start + column.total_compressed_size - 2] ^= 1
    path.write_bytes(whole)


@pytest.fixture
def reference(job):
    job.write(TEXTS)
    [reference] = job.split().references
    return reference


class TestPlan:
    @pytest.mark.parametrize(
        "change",
        [
            lambda plan: plan["spec"].update(prompt="Ignore this: {{ text }}"),
            lambda plan: plan["spec"].update(output_column="other"),
            lambda plan: plan["shards"][0].update(rows=5),
            lambda plan: plan["shards"][0].update(donors=["0" * 32]),
            lambda plan: plan.update(created="2020-01-01T00:00:00+00:00"),
            lambda plan: plan.update(plan_id="0" * 16),
            lambda plan: plan.pop("checksum"),
        ],
    )
    def test_that_was_edited_is_refused_and_made_anew_by_the_split(self, job, reference, change):
        path = only(job, "plans")
        plan = json.loads(path.read_text())
        change(plan)
        path.write_text(json.dumps(plan))
        with pytest.raises(
            LLMStateError, match=f"{path.name} is not what the split wrote.*[Cc]lear the split"
        ):
            job.shard_run(reference).run()
        with pytest.raises(LLMStateError, match="is not what the split wrote"):
            merge(reference.plan)
        assert job.requests() == 0
        assert job.run().succeeded == 6


class TestShard:
    def test_with_another_row_is_refused_and_made_anew_by_the_split(self, job, reference):
        path = only(job, "shards")
        table = pq.read_table(path)
        texts = ["another row", *TEXTS[1:]]
        pq.write_table(table.set_column(0, table.schema.field(0), pa.array(texts, pa.string())), path)
        with pytest.raises(LLMStateError, match=f"{path.name} does not hold the rows.*[Cc]lear the split"):
            job.shard_run(reference).run()
        assert job.requests() == 0
        assert job.run().succeeded == 6

    @pytest.mark.parametrize("column", ["text", "_llm_tokens", "_llm_fingerprint"])
    def test_of_which_bits_have_flipped_is_refused(self, job, reference, column):
        path = only(job, "shards")
        flip(path, column)
        with pytest.raises(LLMStateError, match=path.name):
            job.shard_run(reference).run()
        assert job.requests() == 0

    def test_written_again_as_it_was_is_the_same_shard(self, job, reference):
        path = only(job, "shards")
        pq.write_table(pq.read_table(path), path, row_group_size=2)
        assert job.shard_run(reference).run().rows_by_status == {"success": 6}

    def test_that_holds_the_same_rows_as_another_has_a_name_of_its_own(self, job):
        job.write(["same", "same", "same", "same"])
        job.run(max_rows_per_shard=1, complete={"deduplicate": False})
        assert [row["answer"] for row in job.output()] == ["answer to same"] * 4


class TestResults:
    def test_of_which_bits_have_flipped_are_asked_again_and_not_merged(self, job, reference, caplog):
        job.shard_run(reference).run()
        path = only(job, "results")
        flip(path, "answer")
        with pytest.raises(
            LLMStateError, match="results of shard 0 are damaged.*run its complete task again"
        ):
            merge(reference.plan)
        job.requests()
        assert job.shard_run(reference).run().rows_by_status == {"success": 6}
        assert job.requests() == 6
        assert "asked again" in caplog.text
        assert merge(reference.plan).succeeded == 6
