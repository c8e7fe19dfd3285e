from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llm_provider.dataset.arrow.content_hash import ContentHash
from airflow_llm_provider.dataset.drafting.split import draft_split
from airflow_llm_provider.dataset.drafting.spool import Spool
from airflow_llm_provider.dataset.plans.plan import SplitSettings, read_plan
from airflow_llm_provider.dataset.plans.prepared import PreparedRows
from airflow_llm_provider.dataset.plans.shards import SHARD_COLUMNS, open_shard
from airflow_llm_provider.errors import LLMInputError, LLMStateError
from airflow_llm_provider.spec import CompletionSpec
from airflow_llm_provider.testing.arrow_tables import tables


def rows_of_plan(bench, plan):
    tables = []
    for entry in plan.shards:
        with open_shard(bench.layout, entry) as shard:
            tables.extend(pa.Table.from_batches([batch]) for batch in shard.batches(3))
    return pa.concat_tables(tables)


def digest(table):
    """Hash all values: unlike a comparison it knows NaN from NaN."""
    content = ContentHash(table.schema, b"")
    for batch in table.to_batches():
        content.update(batch)
    return content.hexdigest()


def one_request(batch):
    return PreparedRows(tokens=[1], fingerprints=[b"f" * 16], statuses=[None], errors=[None])


class TestDraftSplit:
    def test_writes_shards_in_order_and_the_plan(self, workbench, numbers):
        plan = workbench.split(numbers(range(23)))
        assert [(e.index, e.first_row, e.rows, e.tokens) for e in plan.shards] == [
            (0, 0, 5, 50), (1, 5, 5, 50), (2, 10, 5, 50), (3, 15, 5, 50), (4, 20, 3, 30),
        ]  # fmt: skip
        assert rows_of_plan(workbench, plan).column("x").to_pylist() == list(range(23))
        assert read_plan(workbench.layout, plan.plan_id) == plan

    def test_the_same_input_gives_the_same_plan(self, make_workbench, numbers):
        one, other = make_workbench(), make_workbench("memory")
        assert one.split(numbers(range(23))).plan_id == other.split(numbers(range(23)), batch_rows=4).plan_id
        assert one.split(numbers(range(22))).plan_id != other.split(numbers(range(23))).plan_id

    def test_a_shard_keeps_its_id_wherever_it_stands(self, bench, numbers):
        before = bench.split(numbers(range(20)))
        after = bench.split(numbers([*range(100, 105), *range(20)]))
        assert [e.shard_id for e in after.shards][1:] == [e.shard_id for e in before.shards]

    def test_I2_another_spec_makes_other_shards(self, bench, numbers):
        plan = bench.split(numbers(range(5)))
        bench.spec = CompletionSpec(model="m", prompt="{{ x }}", temperature=0.5)
        assert bench.split(numbers(range(5))).shards[0].shard_id != plan.shards[0].shard_id

    def test_the_same_rows_twice_are_two_shards(self, bench, numbers):
        plan = bench.split(numbers([1, 2, 3, 4, 5] * 3))
        assert len({entry.shard_id for entry in plan.shards}) == 3
        again = bench.split(numbers([1, 2, 3, 4, 5] * 2))
        assert [e.shard_id for e in again.shards] == [e.shard_id for e in plan.shards][:2]

    def test_A1_too_many_shards_fail_at_once_and_write_nothing(self, workbench, numbers):
        with pytest.raises(LLMInputError) as caught:
            workbench.draft(numbers(range(1025)), shard_tokens=10, max_shards=1024, batch_rows=4096)
        message = str(caught.value)
        assert "max_shards allows 1,024" in message
        assert "1,025 shards" in message
        assert "shard_tokens to 20 or more" in message
        assert workbench.files() == []

    def test_A1_the_named_budget_fits(self, workbench, numbers):
        assert len(workbench.split(numbers(range(1025)), shard_tokens=20, max_shards=1024).shards) == 513

    def test_A1_shards_are_enlarged_to_fit_and_both_numbers_told(self, workbench, numbers):
        with workbench.draft(numbers(range(1025)), shard_tokens=10, max_shards=100, enlarge=True) as draft:
            assert draft.settings.shard_tokens == 110
            (note,) = draft.notes
            assert "1,025 shards of up to 10 tokens are more than max_shards (100)" in note
            assert "enlarged shard_tokens from 10 to 110, which makes 94 shards" in note
            plan = draft.commit(created="t")
        assert len(plan.shards) == 94
        assert plan.settings.shard_tokens == 110
        assert rows_of_plan(workbench, plan).column("x").to_pylist() == list(range(1025))

    def test_A1_bounds_that_never_fit_name_themselves(self, bench, numbers):
        with pytest.raises(LLMInputError, match=r"max_rows_per_shard from 2 to at least 5,"):
            bench.draft(numbers(range(50)), shard_tokens=1000, max_rows=2, max_shards=10, enlarge=True)

    def test_A2_no_rows_make_a_plan_without_shards(self, workbench, numbers):
        plan = workbench.split(numbers([]))
        assert plan.shards == ()
        assert plan.rows == 0
        assert read_plan(workbench.layout, plan.plan_id) == plan
        assert plan.references(workbench.layout) == []

    def test_a_draft_alone_writes_nothing(self, workbench, numbers):
        with workbench.draft(numbers(range(9))) as draft:
            assert (draft.rows, draft.requests, draft.tokens, len(draft.shards)) == (9, 9, 90, 2)
        assert workbench.files() == []

    def test_D8_rows_that_are_not_sent_take_nothing_of_the_budget(self, bench, numbers):
        def prepare(batch):
            odd = [value % 2 == 1 for value in batch.column("x").to_pylist()]
            return PreparedRows(
                tokens=[1000 if o else 10 for o in odd],
                fingerprints=[None if o else bytes([n]) * 16 for n, o in enumerate(odd)],
                statuses=["context_too_long" if o else None for o in odd],
                errors=["too long" if o else None for o in odd],
            )

        with bench.draft(numbers(range(10)), prepare=prepare) as draft:
            assert (draft.rows, draft.requests, draft.tokens) == (10, 5, 50)
            assert draft.rows_by_status == Counter(context_too_long=5)
            assert draft.largest_row_tokens == 10
            assert draft.first_error == "too long"
            plan = draft.commit(created="t")
        with open_shard(bench.layout, plan.shards[0]) as shard:
            assert shard.keys.tokens == [10, 1000] * 5
            assert shard.keys.statuses == [None, "context_too_long"] * 5

    def test_clashing_columns_stop_the_split_before_it_reads(self, bench):
        with pytest.raises(LLMInputError, match=r"'Answer'.*output_column="):
            bench.draft(pa.table({"Answer": [1]}), prepare=None)

    def test_files_of_someone_else_stop_the_split(self, workbench, numbers):
        workbench.layout.storage.write_bytes("part-00000.parquet", b"mine")
        workbench.layout.storage.write_bytes("README.md", b"harmless")
        workbench.layout.storage.write_bytes("other/x.parquet", b"harmless")
        with pytest.raises(LLMInputError, match=r"someone else.*part-00000\.parquet"):
            workbench.draft(numbers([1]))

    def test_a_source_that_changes_meanwhile_stops_the_split(self, bench, numbers):
        def changed():
            raise LLMStateError("changed")

        with bench.draft(numbers([1])) as draft:
            source = draft._source
        source.check_unchanged = changed
        with pytest.raises(LLMStateError, match="changed"):
            draft_split(
                source,
                spec=bench.spec,
                layout=bench.layout,
                settings=SplitSettings(shard_tokens=5),
                prepare=one_request,
            )
        assert bench.files() == []

    def test_a_preparation_of_the_wrong_length_is_a_bug(self, bench, numbers):
        with pytest.raises(ValueError, match="for 3 rows"):
            bench.draft(
                numbers([1, 2, 3]),
                prepare=lambda batch: PreparedRows(
                    tokens=[1], fingerprints=[None], statuses=[None], errors=[None]
                ),
            )

    @settings(max_examples=25)
    @given(table=tables(), tokens=st.integers(1, 60), spill=st.booleans())
    def test_holds_every_value_bit_for_bit(self, make_workbench, table, tokens, spill):
        bench = make_workbench("memory")
        with bench.draft(table, shard_tokens=tokens, batch_rows=3) as draft:
            if spill and draft._spool._batches:
                draft._spool._spill()
            plan = draft.commit(created="t")
        if plan.shards:
            again = rows_of_plan(bench, plan)
            assert again.schema.equals(table.schema)
            assert digest(again) == digest(table)


class TestSpool:
    @pytest.mark.parametrize("memory", [0, 1 << 30])
    def test_gives_back_all_batches_as_often_as_asked(self, memory):
        table = pa.table({"x": list(range(100)), "c": pa.array(list("abcde" * 20)).dictionary_encode()})
        spool = Spool(table.schema, memory=memory)
        for batch in table.to_batches(max_chunksize=7):
            spool.append(batch)
        for _ in range(2):
            assert pa.Table.from_batches(spool, table.schema).equals(table)
        spool.close()

    def test_holds_dictionaries_that_differ_by_batch(self):
        kind = pa.dictionary(pa.int32(), pa.string())
        spool = Spool(pa.schema([("c", kind)]), memory=0)
        for values in (["a", "b"], ["c"], ["b", None]):
            spool.append(pa.record_batch({"c": pa.array(values, kind)}))
        assert [v for batch in spool for v in batch.column(0).to_pylist()] == ["a", "b", "c", "b", None]
        spool.close()


class TestShardFile:
    def test_reads_some_columns_as_rows(self, bench):
        table = pa.table({"a": [1, 2], "b.c": ["x", None], "b": [{"c": 1}, {"c": 2}]})
        plan = bench.split(table)
        with open_shard(bench.layout, plan.shards[0]) as shard:
            assert list(shard.iter_rows(["b.c", "a"])) == [{"b.c": "x", "a": 1}, {"b.c": None, "a": 2}]
            assert list(shard.iter_rows(["b"])) == [{"b": {"c": 1}}, {"b": {"c": 2}}]
            assert list(shard.iter_rows([])) == [{}, {}]
            assert shard.input_schema.equals(table.schema)

    def test_numbers_identical_requests(self, bench, numbers):
        plan = bench.split(numbers([7, 8, 7, 7, 8]))
        with open_shard(bench.layout, plan.shards[0]) as shard:
            assert shard.keys.occurrences == [0, 0, 1, 2, 1]
            assert len(set(shard.keys.fingerprints)) == 2

    def test_G14_a_torn_shard_names_the_remedy(self, workbench, numbers):
        plan = workbench.split(numbers(range(5)))
        name = workbench.layout.shard(plan.shards[0].shard_id)
        whole = workbench.layout.storage.read_bytes(name)
        workbench.layout.storage.write_bytes(name, whole[: len(whole) // 2])
        with (
            pytest.raises(LLMStateError, match="clear the split"),
            open_shard(workbench.layout, plan.shards[0]),
        ):
            pass
        workbench.layout.storage.delete(name)
        with pytest.raises(LLMStateError, match="missing: clear the split"):
            open_shard(workbench.layout, plan.shards[0]).__enter__()

    def test_G14_the_next_split_makes_a_torn_shard_anew(self, workbench, numbers):
        plan = workbench.split(numbers(range(5)))
        workbench.layout.storage.write_bytes(workbench.layout.shard(plan.shards[0].shard_id), b"PAR1")
        assert rows_of_plan(workbench, workbench.split(numbers(range(5)))).num_rows == 5

    def test_invalid_utf8_of_another_writer_passes_and_renders(self, bench):
        bad = pa.Array.from_buffers(
            pa.string(), 1, [None, pa.array([0, 3], pa.int32()).buffers()[1], pa.py_buffer(b"a\xffb")]
        )
        plan = bench.split(pa.table({"x": bad}), prepare=one_request)
        with open_shard(bench.layout, plan.shards[0]) as shard:
            assert list(shard.iter_rows(["x"])) == [{"x": "a\ufffdb"}]
            assert next(shard.batches()).column(0).cast(pa.binary()).to_pylist() == [b"a\xffb"]

    def test_columns_of_ours_come_last(self, bench, numbers):
        plan = bench.split(numbers([1]))
        with bench.layout.storage.open_parquet(bench.layout.shard(plan.shards[0].shard_id)) as file:
            assert file.schema_arrow.names == ["x", *(field.name for field in SHARD_COLUMNS)]
