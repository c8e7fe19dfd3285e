import dataclasses
import errno
import io
import json
from contextlib import contextmanager

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llm_provider import dataset
from airflow_llm_provider.dataset.arrow.content_hash import ContentHash
from airflow_llm_provider.dataset.files.layout import MANIFEST, Layout
from airflow_llm_provider.engine.call import Outcome
from airflow_llm_provider.engine.status import RowStatus
from airflow_llm_provider.engine.usage import Usage
from airflow_llm_provider.errors import LLMInputError, LLMStateError
from airflow_llm_provider.spec import CompletionSpec
from airflow_llm_provider.testing.arrow_tables import tables


def digest(table):
    content = ContentHash(table.schema, b"")
    for batch in table.to_batches():
        content.update(batch)
    return content.hexdigest()


def failing(every):
    """Reply with an error to every so many rows."""

    def reply(bench):
        def answer(row, index):
            if len(bench.asked) % every == 0:
                bad = Outcome(
                    index=index, status=RowStatus.REFUSED, text="no", message="declined", attempts=1
                )
                return dataclasses.replace(
                    bad, usage=Usage(prompt_tokens=7), cost_usd=0.5, finish_reason="stop"
                )
            return bench.reply(row, index)

        return answer

    return reply


class TestMergeShards:
    @settings(max_examples=25)
    @given(
        table=tables(),
        tokens=st.integers(1, 120),
        rows_per_group=st.integers(1, 20),
        bytes_per_file=st.sampled_from([1, 3000, 1 << 20]),
    )
    def test_G1_to_G9_every_input_value_comes_out_bit_for_bit(
        self, make_workbench, table, tokens, rows_per_group, bytes_per_file
    ):
        bench = make_workbench("memory")
        plan = bench.run(table, shard_tokens=tokens)
        report = bench.merge(plan, rows_per_group=rows_per_group, bytes_per_file=bytes_per_file)
        assert report.rows == table.num_rows == sum(report.rows_by_status.values())
        output = bench.output()
        inputs = output.select(range(table.num_columns))
        assert inputs.schema.equals(table.schema)
        assert digest(inputs) == digest(table)
        assert output.column("answer").to_pylist() == [f"answer {n}" for n in range(table.num_rows)]

    def test_G1_all_files_have_one_schema_and_read_as_a_folder(self, bench):
        table = pa.table(
            {"x": range(40), "note": pa.array([None] * 20 + ["ok"] * 20), "tags": [[]] * 20 + [["x"]] * 20}
        )
        bench.merge(bench.run(table), bytes_per_file=1, rows_per_group=5)
        root = bench.layout.destination
        names = [name for name in bench.layout.storage.files("") if name.endswith(".parquet")]
        assert len(names) == 8
        schemas = [pq.read_schema(f"{root}/{name}") for name in names]
        assert all(schema.equals(schemas[0]) for schema in schemas)
        folder = ds.dataset(root, format="parquet")
        assert folder.to_table().column("x").to_pylist() == list(range(40))
        assert len(pd.read_parquet(root)) == 40

    def test_A2_no_rows_make_an_empty_output_with_the_schema(self, workbench, numbers):
        plan = workbench.run(numbers([]))
        report = workbench.merge(plan)
        assert (report.rows, report.rows_by_status, report.rejects, report.cost_usd) == (0, {}, None, 0.0)
        output = workbench.output()
        assert output.num_rows == 0
        assert output.column_names[:3] == ["x", "answer", "llm_status"]
        assert workbench.layout.storage.files("") == ["_manifest.json", "part-00000.parquet"]
        assert workbench.merge(plan) == report

    def test_A8_one_shard_merges_as_many_do(self, workbench, numbers):
        workbench.merge(workbench.run(numbers(range(10)), shard_tokens=1000))
        one = workbench.output()
        workbench.merge(workbench.run(numbers(range(10)), shard_tokens=20))
        assert workbench.output().equals(one)

    def test_names_missing_shards_and_leaves_the_old_output(self, workbench, numbers):
        workbench.merge(workbench.run(numbers(range(10))))
        before = workbench.files()
        plan = workbench.split(numbers(range(100, 120)))
        for entry in plan.shards[::2]:
            workbench.answer(entry)
        with pytest.raises(LLMStateError) as caught:
            workbench.merge(plan)
        assert "2 of 4 shards are not finished" in str(caught.value)
        for entry in plan.shards[1::2]:
            assert f"{entry.index} ({entry.shard_id})" in str(caught.value)
        assert workbench.output().column("x").to_pylist() == list(range(10))
        assert set(before) <= set(workbench.files())

    def test_a_disk_that_fills_meanwhile_is_a_state_error_that_names_the_part(
        self, workbench, numbers, monkeypatch
    ):
        """Where the last rows are written, too: no file is being opened or closed there."""

        class Full(io.BytesIO):
            def write(self, data):
                raise OSError(errno.ENOSPC, "No space left on device")

        @contextmanager
        def create(storage, name, *, staged=False):
            yield Full()

        plan = workbench.run(numbers(range(30)))
        monkeypatch.setattr(type(workbench.layout.storage), "create", create)
        with pytest.raises(LLMStateError, match=r"part-00000\.parquet could not be written: .*No space left"):
            workbench.merge(plan)

    def test_names_only_a_few_of_many_missing_shards(self, bench, numbers):
        plan = bench.split(numbers(range(100)), shard_tokens=10)
        with pytest.raises(LLMStateError, match=r"100 of 100 shards .* and 95 more"):
            bench.merge(plan)

    def test_results_of_other_rows_are_refused(self, workbench, numbers):
        plan = workbench.run(numbers(range(10)))
        one, other = (workbench.layout.results(entry.shard_id) for entry in plan.shards)
        workbench.layout.storage.write_bytes(one, workbench.layout.storage.read_bytes(other))
        with pytest.raises(LLMStateError, match=r"results of shard 0 .* belong to other rows"):
            workbench.merge(plan)

    def test_results_of_another_length_are_refused(self, workbench, numbers):
        plan = workbench.run(numbers(range(8)))
        one, other = (workbench.layout.results(entry.shard_id) for entry in plan.shards)
        workbench.layout.storage.write_bytes(one, workbench.layout.storage.read_bytes(other))
        with pytest.raises(LLMStateError, match="has 5 rows in the plan, 5 in its file and 3 in its results"):
            workbench.merge(plan)

    def test_G14_torn_results_name_the_shard_and_the_remedy(self, workbench, numbers):
        plan = workbench.run(numbers(range(8)))
        name = workbench.layout.results(plan.shards[1].shard_id)
        workbench.layout.storage.write_bytes(name, workbench.layout.storage.read_bytes(name)[:-30])
        with pytest.raises(
            LLMStateError, match="results of shard 1 are damaged .*run its complete task again"
        ):
            workbench.merge(plan)
        assert workbench.files("_llm/staging") == []

    def test_rows_without_an_answer_are_kept_and_gathered(self, workbench, numbers):
        plan = workbench.split(numbers(range(12)))
        for entry in plan.shards:
            workbench.answer(entry, reply=failing(3)(workbench))
        report = workbench.merge(plan)
        assert report.rows_by_status == {"success": 8, "refused": 4}
        output = workbench.output()
        assert output.column("x").to_pylist() == list(range(12))
        assert [a is None for a in output.column("answer").to_pylist()] == [n % 3 == 0 for n in range(12)]
        assert workbench.output(rejects=False).column("x").to_pylist() == [n for n in range(12) if n % 3]
        with workbench.layout.storage.open_parquet("_rejects.parquet") as file:
            rejects = file.read()
        assert rejects.column("x").to_pylist() == [0, 3, 6, 9]
        assert rejects.column("llm_text").to_pylist() == ["no"] * 4
        assert rejects.column("llm_error").to_pylist() == ["declined"] * 4
        assert rejects.column_names == [*output.column_names, "llm_text"]

    def test_rejects_go_when_there_are_none_left(self, workbench, numbers):
        plan = workbench.split(numbers([1, 2]))

        def fail(row, index):
            return Outcome(index=index, status=RowStatus.ERROR, code="http_503", attempts=2)

        workbench.answer(plan.shards[0], reply=fail)
        assert workbench.merge(plan).rejects == workbench.layout.uri("_rejects.parquet")
        workbench.answer(plan.shards[0])
        assert workbench.merge(plan).rejects is None
        assert workbench.layout.storage.files("") == ["_manifest.json", "part-00000.parquet"]

    def test_parts_of_a_longer_output_go(self, workbench, numbers):
        workbench.merge(workbench.run(numbers(range(30))), rows_per_group=5, bytes_per_file=1)
        assert len(workbench.layout.storage.files("")) == 7
        workbench.merge(workbench.run(numbers(range(5))))
        assert workbench.layout.storage.files("") == ["_manifest.json", "part-00000.parquet"]
        assert workbench.output().num_rows == 5

    def test_files_of_someone_else_are_never_touched(self, workbench, numbers):
        plan = workbench.run(numbers(range(5)))
        workbench.layout.storage.write_bytes("notes.md", b"mine")
        workbench.layout.storage.write_bytes("other/part-00000.parquet", b"mine")
        workbench.merge(plan)
        assert workbench.layout.storage.read_bytes("notes.md") == b"mine"
        assert workbench.layout.storage.read_bytes("other/part-00000.parquet") == b"mine"
        workbench.layout.storage.write_bytes("part-00001.parquet", b"mine")
        with pytest.raises(LLMInputError, match=r"someone else.*part-00001\.parquet"):
            workbench.merge(plan)
        assert workbench.layout.storage.read_bytes("part-00001.parquet") == b"mine"

    def test_counts_usage_and_cost(self, workbench, numbers):
        report = workbench.merge(workbench.run(numbers(range(10))))
        assert report.usage == Usage(prompt_tokens=100, completion_tokens=20)
        assert report.cost_usd == 5.0

    def test_an_unknown_price_makes_the_cost_unknown(self, workbench, numbers):
        def reply(row, index):
            cost = None if row["x"] == 3 else 0.5
            return dataclasses.replace(workbench.reply(row, index), cost_usd=cost)

        plan = workbench.split(numbers(range(10)))
        for entry in plan.shards:
            workbench.answer(entry, reply=reply)
        assert workbench.merge(plan).cost_usd is None

    def test_the_manifest_says_what_is_there(self, workbench, numbers):
        plan = workbench.run(numbers(range(12)))
        report = workbench.merge(plan, extra={"run_id": "r1"}, bytes_per_file=1, rows_per_group=5)
        manifest = json.loads(workbench.layout.storage.read_bytes(MANIFEST))
        assert report.manifest == workbench.layout.uri(MANIFEST)
        assert [file["name"] for file in manifest["files"]] == [f"part-{n:05d}.parquet" for n in range(3)]
        assert [file["rows"] for file in manifest["files"]] == [5, 5, 2]
        assert [file["size"] for file in manifest["files"]] == [
            workbench.layout.storage.size(file["name"]) for file in manifest["files"]
        ]
        assert manifest["plan_id"] == plan.plan_id
        assert manifest["rows_by_status"] == {"success": 12}
        assert manifest["columns"]["answer"] == "string"
        assert manifest["run_id"] == "r1"

    def test_identical_inputs_make_identical_files(self, make_workbench, numbers):
        contents = []
        for _ in range(2):
            bench = make_workbench()
            bench.merge(bench.run(numbers(range(30))))
            contents.append(bench.layout.storage.read_bytes("part-00000.parquet"))
        assert contents[0] == contents[1]

    def test_typed_answers_keep_their_types(self, make_workbench, numbers):
        schema = {
            "type": "object",
            "properties": {"label": {"enum": ["a", "b"]}, "score": {"type": "number"}, "tags": {"type": "array", "items": {"type": "string"}}},
        }  # fmt: skip
        bench = make_workbench(spec=CompletionSpec(model="m", prompt="{{ x }}", output_schema=schema))
        answers = [{"label": "a", "score": 1, "tags": []}, {"label": "b", "tags": ["t"]}]

        def reply(row, index):
            return dataclasses.replace(
                bench.reply(row, index), answer=answers[index], text=json.dumps(answers[index])
            )

        plan = bench.split(numbers([1, 2]))
        bench.answer(plan.shards[0], reply=reply)
        bench.merge(plan)
        assert bench.output().select(["label", "score", "tags"]).to_pylist() == [
            {"label": "a", "score": 1.0, "tags": []},
            {"label": "b", "score": None, "tags": ["t"]},
        ]


class TestKilledMerge:
    class DiesError(Exception):
        pass

    @pytest.mark.parametrize("moves", [0, 1, 2])
    def test_the_next_one_finishes_what_a_killed_one_began(self, workbench, numbers, moves):
        workbench.merge(workbench.run(numbers(range(30))), rows_per_group=5, bytes_per_file=1)
        plan = workbench.run(numbers(range(100, 115)))
        storage = workbench.layout.storage
        real, left = storage.move, [moves]

        def move(old, new):
            if not left[0]:
                raise self.DiesError
            left[0] -= 1
            real(old, new)

        storage.move = move
        with pytest.raises(self.DiesError):
            workbench.merge(plan, rows_per_group=5, bytes_per_file=1)
        storage.move = real
        with pytest.raises(LLMStateError, match="no run has finished there, or one is just replacing"):
            workbench.output()
        workbench.split(numbers(range(100, 115)))
        workbench.merge(plan, rows_per_group=5, bytes_per_file=1)
        assert workbench.output().column("x").to_pylist() == list(range(100, 115))
        assert len(storage.files("")) == 4

    def test_one_that_dies_before_the_end_leaves_the_old_output(self, workbench, numbers):
        workbench.merge(workbench.run(numbers(range(30))))
        before = {
            name: workbench.layout.storage.read_bytes(name) for name in workbench.layout.storage.files("")
        }
        plan = workbench.run(numbers(range(100, 130)))
        workbench.layout.storage.delete(workbench.layout.shard(plan.shards[-1].shard_id))
        with pytest.raises(LLMStateError, match="clear the split"):
            workbench.merge(plan)
        after = {
            name: workbench.layout.storage.read_bytes(name) for name in workbench.layout.storage.files("")
        }
        assert after == before
        assert workbench.files("_llm/staging") == []


class TestReadResults:
    def test_is_there_for_users(self, workbench, numbers):
        workbench.merge(workbench.run(numbers(range(3))))
        frame = dataset.read_results(workbench.layout.destination, as_pandas=True)
        assert isinstance(frame, pd.DataFrame)
        assert list(frame["x"]) == [0, 1, 2]

    def test_no_output_says_so(self, workbench):
        with pytest.raises(LLMStateError, match=r"has no _manifest\.json"):
            dataset.read_results(workbench.layout.destination)

    def test_a_file_that_was_changed_is_noticed(self, bench, numbers):
        bench.merge(bench.run(numbers(range(3))))
        pq.write_table(pa.table({"x": [1]}), f"{bench.layout.destination}/part-00000.parquet")
        with pytest.raises(LLMStateError, match="has 1 rows where the manifest says 3"):
            bench.output()

    def test_a_damaged_manifest_is_not_a_missing_one(self, workbench):
        workbench.layout.storage.write_bytes(MANIFEST, b"{")
        with pytest.raises(LLMStateError, match="is damaged"):
            workbench.output()

    def test_a_missing_name_is_an_attribute_error(self):
        with pytest.raises(AttributeError, match="nosuch"):
            dataset.nosuch  # noqa: B018


class TestLayers:
    def test_nothing_heavy_is_loaded(self):
        import subprocess
        import sys

        script = (
            "import sys, airflow_llm_provider.dataset.merging.merge, airflow_llm_provider.dataset.sources.source\n"
            "import airflow_llm_provider.dataset.drafting.split, airflow_llm_provider.dataset.counting.tokens\n"
            "heavy = {'airflow', 'openai', 'pandas', 'tiktoken', 'jinja2'} & set(sys.modules)\n"
            "assert not heavy, heavy\n"
        )
        subprocess.run([sys.executable, "-c", script], check=True)
        assert Layout("/x").destination == "/x"
