import dataclasses
import json

import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llm_provider.dataset.files.layout import Layout
from airflow_llm_provider.dataset.plans.plan import Plan, SplitSettings, plan_id_of, read_plan, write_plan
from airflow_llm_provider.dataset.plans.shard_entry import ShardEntry
from airflow_llm_provider.errors import LLMInputError, LLMStateError
from airflow_llm_provider.spec import CompletionSpec
from airflow_llm_provider.testing.arrow_tables import tables

SPEC = CompletionSpec(model="m", prompt="{{ secret row text }}")
SETTINGS = SplitSettings(shard_tokens=100)


def make_plan(shards=3, schema=None, rows=15_625):
    entries = tuple(
        ShardEntry(
            shard_id=f"{n:032x}", index=n, rows=rows, tokens=999_999, first_row=n * rows, donors=("d" * 32,)
        )
        for n in range(shards)
    )
    schema = schema or pa.schema([("x", pa.int64())])
    return Plan(
        plan_id=plan_id_of(SPEC, schema, SETTINGS, entries),
        created="2026-01-01T00:00:00+00:00",
        spec=SPEC,
        input_schema=schema,
        shards=entries,
        settings=SETTINGS,
        source=({"uri": "s3://x/a.csv", "size": 1, "version": "e"},),
        versions={"pyarrow": "1"},
        estimate={"requests": 3},
    )


class TestPlan:
    @settings(max_examples=30)
    @given(tables())
    def test_comes_back_whole_with_any_schema(self, table):
        plan = make_plan(schema=table.schema)
        again = Plan.from_json(json.loads(json.dumps(plan.to_json())))
        assert again == plan
        assert again.input_schema.equals(table.schema, check_metadata=True)

    def test_is_read_as_it_was_written(self, workbench):
        plan = make_plan()
        uri = write_plan(workbench.layout, plan)
        layout, plan_id = Layout.of_plan(uri)
        assert read_plan(layout, plan_id) == plan

    def test_a_missing_plan_names_the_remedy(self, workbench):
        with pytest.raises(LLMStateError, match="is missing: clear the split"):
            read_plan(workbench.layout, "nosuch")

    @pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"plan_version": 1}', b'"x"'])
    def test_a_damaged_plan_is_not_a_missing_one(self, workbench, data):
        workbench.layout.storage.write_bytes(workbench.layout.plan("p"), data)
        with pytest.raises(LLMStateError, match="is damaged|has version"):
            read_plan(workbench.layout, "p")

    def test_a_newer_plan_is_refused_by_its_version(self, workbench):
        value = make_plan().to_json() | {"plan_version": 99}
        workbench.layout.storage.write_bytes(workbench.layout.plan("p"), orjson.dumps(value))
        with pytest.raises(LLMStateError, match="has version 99"):
            read_plan(workbench.layout, "p")

    def test_an_unknown_shard_is_refused(self):
        with pytest.raises(LLMInputError, match="has no shard"):
            make_plan().entry("x")

    def test_the_id_depends_on_content_not_on_time_or_donors(self):
        plan = make_plan()
        later = dataclasses.replace(
            plan,
            created="later",
            shards=tuple(dataclasses.replace(entry, donors=()) for entry in plan.shards),
        )
        assert plan_id_of(SPEC, later.input_schema, later.settings, later.shards) == plan.plan_id
        assert (
            plan_id_of(SPEC, plan.input_schema, SplitSettings(shard_tokens=99), plan.shards) != plan.plan_id
        )

    def test_says_rows_and_tokens(self):
        plan = make_plan(3, rows=5)
        assert (plan.rows, plan.tokens) == (15, 3 * 999_999)


class TestReferences:
    @pytest.mark.parametrize(
        "destination", ["/out", "s3://a-bucket-with-a-name/and/a/long/path/ds=2026-01-01" + "x" * 300]
    )
    @pytest.mark.parametrize("shards", [1, 200, 1024])
    def test_A18_stay_small_whatever_the_destination(self, destination, shards):
        layout = Layout(destination, lambda url: Layout("/x").resolver("/x"))
        values = [reference.to_json() for reference in make_plan(shards).references(layout)]
        assert len(json.dumps(values)) < 256 * 1024
        assert max(len(json.dumps(value)) for value in values) <= 300
        assert "secret" not in json.dumps(values)
        found, plan_id = Layout.of_plan(values[0]["plan"], destination=destination)
        assert found.destination == destination
        assert plan_id == make_plan(shards).plan_id

    def test_name_the_plan_by_its_uri_while_that_is_short(self, tmp_path):
        reference = make_plan(3).references(Layout("/out"))[0]
        assert reference.plan == f"/out/_llm/plans/{make_plan(3).plan_id}.json"


class TestLabel:
    @pytest.mark.parametrize(
        ("rows", "tokens", "label"),
        [
            (500, 48_999, "shard 0002 · rows 500-999 · 48k tok"),
            (1, 999, "shard 0002 · row 500 · 999 tok"),
            (2, 1_250, "shard 0002 · rows 500-501 · 1.2k tok"),
            (2, 1_000, "shard 0002 · rows 500-501 · 1k tok"),
            (2, 3_400_000, "shard 0002 · rows 500-501 · 3.4M tok"),
            (2, 0, "shard 0002 · rows 500-501 · 0 tok"),
        ],
    )
    def test_A17_says_which_rows_and_how_much(self, rows, tokens, label):
        assert ShardEntry(shard_id="", index=2, rows=rows, tokens=tokens, first_row=500).label == label


class TestSplitSettings:
    @pytest.mark.parametrize("name", ["shard_tokens", "max_rows", "max_bytes", "max_shards"])
    @pytest.mark.parametrize("value", [0, -1, True, "5", 1.5])
    def test_refuses_what_is_no_count(self, name, value):
        with pytest.raises(LLMInputError, match=f"{name} is .*: give a whole number of at least 1"):
            SplitSettings(**{"shard_tokens": 5, name: value})

    @given(st.integers(1))
    def test_takes_any_count(self, value):
        assert SplitSettings(shard_tokens=value, max_rows=None).shard_tokens == value
