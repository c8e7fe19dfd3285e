import datetime as dt
import json
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llm_provider.dataset.merging.partition_sorter import PartitionSorter
from airflow_llm_provider.dataset.plans import partitions
from airflow_llm_provider.dataset.plans.partitions import (
    HIVE_NULL,
    PartitionKeys,
    check_partition_by,
    folder_of,
    restored,
)
from airflow_llm_provider.dataset.plans.prepared import PreparedRows
from airflow_llm_provider.errors import LLMInputError

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).filter(
    lambda t: t != HIVE_NULL
)


def spark_unescapes(name):
    """Read a folder's name as Spark's ``unescapePathName`` does: a percent sign and two digits are one character."""
    result, position = "", 0
    while position < len(name):
        if name[position] == "%" and position + 2 < len(name):
            result += chr(int(name[position + 1 : position + 3], 16))
            position += 3
        else:
            result += name[position]
            position += 1
    return result


class TestFolders:
    @given(value=TEXT)
    def test_are_read_back_by_spark_and_pyarrow(self, value):
        folder = folder_of(["k"], (value,))
        assert "/" not in folder
        assert spark_unescapes(folder.removeprefix("k=")) == value
        hive = ds.HivePartitioning(pa.schema([("k", pa.string())]))
        assert hive.parse(f"/{folder}/x.parquet").equals(pc.field("k") == value)

    def test_are_escaped_as_spark_does(self):
        assert folder_of(["a", "b"], ("x/y: 50%", "é退 款")) == "a=x%2Fy%3A 50%25/b=é退 款"

    @pytest.mark.parametrize("value", [None, ""])
    def test_of_nulls_and_of_nothing_are_hives(self, value):
        assert folder_of(["k"], (value,)) == f"k={HIVE_NULL}"

    def test_of_long_values_are_refused(self):
        assert folder_of(["k"], ("é" * 126,))
        with pytest.raises(LLMInputError, match=r"'k' has a value whose folder .* 256 bytes"):
            folder_of(["k"], ("é" * 127,))


class TestColumns:
    SCHEMA = pa.schema(
        [
            ("t", pa.string()),
            ("d", pa.dictionary(pa.int32(), pa.large_string())),
            ("n", pa.int64()),
            ("b", pa.bool_()),
            ("day", pa.date32()),
            ("f", pa.float64()),
            ("l", pa.list_(pa.string())),
            ("_x", pa.string()),
            ("a=b", pa.string()),
            ("", pa.string()),
        ]
    )

    def test_of_text_integers_booleans_and_dates_make_folders(self):
        check_partition_by(["t", "d", "n", "b", "day"], self.SCHEMA)
        check_partition_by([], self.SCHEMA)

    @pytest.mark.parametrize(
        ("columns", "reason"),
        [
            (["f"], "'f', which is double"),
            (["l"], "'l', which is list"),
            (["_x"], "begin with '_'"),
            ([""], "begin with '_', '.' or '='"),
            (["a=b"], "rename it in the source"),
            (["z"], "'z', which the output does not have"),
            (SCHEMA.names, "at least one must stay"),
        ],
    )
    def test_of_other_kinds_are_refused(self, columns, reason):
        with pytest.raises(LLMInputError, match=reason):
            check_partition_by(columns, self.SCHEMA)

    @pytest.mark.parametrize(
        ("kind", "value"),
        [
            (pa.string(), "7"),
            (pa.string(), ""),
            (pa.large_string(), "é"),
            (pa.int8(), -7),
            (pa.uint64(), 2**64 - 1),
            (pa.bool_(), False),
            (pa.date32(), dt.date(2026, 1, 31)),
            (pa.dictionary(pa.int32(), pa.string()), "x"),
            (pa.int64(), None),
            (pa.dictionary(pa.int8(), pa.string()), None),
        ],
    )
    def test_come_back_with_their_types_and_values(self, kind, value):
        plain = kind.value_type if pa.types.is_dictionary(kind) else kind
        array = pa.array([value] * 3, plain)
        batch = pa.record_batch({"k": array.cast(kind)})
        keys = PartitionKeys(["k"])
        assert keys.numbers(batch).tolist() == [0, 0, 0]
        (values,) = json.loads(json.dumps(keys.found))
        back = restored({"k": values[0]}, batch.schema, 3)["k"]
        assert back.type == kind
        assert back.to_pylist() == [value] * 3


class TestKeys:
    @given(
        rows=st.lists(
            st.tuples(st.sampled_from([None, "", "a", "b"]), st.sampled_from([None, 1, 2])), max_size=30
        ),
        size=st.integers(1, 7),
    )
    def test_number_partitions_by_their_first_rows_however_rows_are_batched(self, rows, size):
        table = pa.table(
            {
                "s": pa.array([s for s, _ in rows], pa.string()),
                "n": pa.array([n for _, n in rows], pa.int64()),
            }
        )
        keys = PartitionKeys(["s", "n"])
        found = [int(n) for batch in table.to_batches(max_chunksize=size) for n in keys.numbers(batch)]
        texts = [(s, None if n is None else str(n)) for s, n in rows]
        assert keys.found == list(dict.fromkeys(texts))
        assert [keys.found[number] for number in found] == texts

    def test_of_many_columns_with_many_values_are_told_apart(self):
        columns = {f"c{n}": [f"{n}-{row}" for row in range(1000)] for n in range(7)}
        keys = PartitionKeys(list(columns))
        assert keys.numbers(pa.record_batch(columns)).tolist() == list(range(1000))
        assert keys.found == list(zip(*columns.values(), strict=True))

    def test_stop_at_more_than_one_output_has(self, monkeypatch):
        monkeypatch.setattr(partitions, "MOST_PARTITIONS", 3)
        keys = PartitionKeys(["n"])
        keys.numbers(pa.record_batch({"n": [1, 2, 3]}))
        with pytest.raises(LLMInputError, match="'n' makes more than 3 partitions"):
            keys.numbers(pa.record_batch({"n": [1, 4]}))


class TestSorter:
    @pytest.mark.parametrize("memory", [0, 300, 1 << 30])
    def test_gives_each_partition_its_rows_in_order(self, memory):
        rng = np.random.default_rng(7)
        numbers = rng.integers(0, 5, 200)
        kind = pa.dictionary(pa.int32(), pa.string())
        table = pa.table({"x": list(range(200)), "c": pa.array(["a", "b"] * 100).cast(kind)})
        sorter = PartitionSorter(table.schema, memory=memory)
        start = 0
        for batch in table.to_batches(max_chunksize=7):
            sorter.add(batch, numbers[start : start + batch.num_rows])
            start += batch.num_rows
        found = {n: pa.Table.from_batches(list(rows), table.schema) for n, rows in sorter.partitions()}
        sorter.close()
        assert list(found) == [0, 1, 2, 3, 4]
        for number, rows in found.items():
            assert rows.column("x").to_pylist() == np.flatnonzero(numbers == number).tolist()
            assert rows.column("c").to_pylist() == ["ab"[x % 2] for x in rows.column("x").to_pylist()]

    def test_of_nothing_gives_nothing(self):
        sorter = PartitionSorter(pa.schema([("x", pa.int64())]))
        assert list(sorter.partitions()) == []
        sorter.close()


@pytest.fixture
def table():
    return pa.table(
        {
            "ds": pa.array(["2026-01-02", None, "2026-01-01", "2026-01-02", "", "a/b"]),
            "x": [0, 1, 2, 3, 4, 5],
            "n": pa.array([7, 7, 7, 8, 7, 7], pa.int16()),
        }
    )


class TestMerge:
    def test_writes_a_folder_for_each_partition(self, workbench, table):
        workbench.merge(workbench.run(table, partition_by=("ds", "n")))
        assert [name for name in workbench.files() if not name.startswith("_")] == [
            "ds=2026-01-01/n=7/part-00002.parquet",
            "ds=2026-01-02/n=7/part-00000.parquet",
            "ds=2026-01-02/n=8/part-00003.parquet",
            f"ds={HIVE_NULL}/n=7/part-00001.parquet",
            f"ds={HIVE_NULL}/n=7/part-00004.parquet",
            "ds=a%2Fb/n=7/part-00005.parquet",
        ]

    def test_manifest_and_read_results_restore_values_types_and_columns(self, workbench, table):
        plain = workbench.merge(workbench.run(table))
        before = workbench.output()
        assert plain.files[0].endswith("/part-00000.parquet")
        workbench.merge(workbench.run(table, partition_by=("ds", "n")))
        after = workbench.output()
        assert after.schema == before.schema
        assert after.column("x").to_pylist() == list(range(6))
        assert after.equals(before)

    def test_order_within_a_partition_is_that_of_the_input(self, workbench):
        table = pa.table({"k": ["b", "a"] * 10, "x": list(range(20))})
        workbench.merge(workbench.run(table, partition_by=("k",)))
        assert workbench.output().column("x").to_pylist() == [*range(0, 20, 2), *range(1, 20, 2)]

    def test_is_one_dataset_to_pyarrow(self, bench, table):
        bench.merge(bench.run(table, partition_by=("ds", "n")))
        kinds = pa.schema([("ds", pa.string()), ("n", pa.int16())])
        read = ds.dataset(bench.layout.destination, partitioning=ds.HivePartitioning(kinds)).to_table()
        rows = sorted(read.select(["x", "ds", "n"]).to_pylist(), key=lambda row: row["x"])
        # An empty text is a null to everyone but the manifest.
        assert [row["ds"] or None for row in rows] == [
            "2026-01-02",
            None,
            "2026-01-01",
            "2026-01-02",
            None,
            "a/b",
        ]
        assert [row["n"] for row in rows] == [7, 7, 7, 8, 7, 7]

    def test_is_one_dataset_to_duckdb_polars_and_pandas(self, bench, tmp_path):
        values = ["2026-01-02", None, "a/b", "é退 款", "50%", "x y", "a=b"]
        bench.merge(bench.run(pa.table({"k": values, "x": list(range(7))}), partition_by=("k",)))
        # DuckDB and Polars take the odd characters of the workbench's folders for patterns.
        folder = tmp_path / "plain"
        Path(bench.layout.destination).rename(folder)
        parts = f"{folder}/k=*/part-*.parquet"
        relation = duckdb.read_parquet(parts, hive_partitioning=True).order("x").project("k")
        assert [k for (k,) in relation.fetchall()] == values
        frame = pl.scan_parquet(parts, hive_partitioning=True).sort("x").collect()
        assert frame["k"].to_list() == values
        kinds = ds.partitioning(pa.schema([("k", pa.string())]), flavor="hive")
        table = pd.read_parquet(folder, partitioning=kinds).sort_values("x")
        assert [None if pd.isna(k) else k for k in table["k"]] == values

    def test_partitions_by_what_the_model_answered(self, workbench, numbers):
        workbench.merge(workbench.run(numbers(range(3)), partition_by=("answer",)))
        assert [name.split("/")[0] for name in workbench.files() if "answer=" in name] == [
            f"answer=answer {n}" for n in range(3)
        ]
        assert workbench.output().column("answer").to_pylist() == [f"answer {n}" for n in range(3)]

    def test_rejects_keep_all_columns(self, workbench):
        table = pa.table({"k": ["a", "b"], "x": [0, 1]})

        def prepare(batch):
            return PreparedRows(
                tokens=[5, 0],
                fingerprints=[b"f" * 16, None],
                statuses=[None, "empty_input"],
                errors=[None, "blank"],
            )

        workbench.merge(workbench.run(table, partition_by=("k",), prepare=prepare))
        with workbench.layout.storage.open_parquet("_rejects.parquet") as file:
            assert file.read().column("k").to_pylist() == ["b"]
        assert workbench.output(rejects=False).column("k").to_pylist() == ["a"]

    def test_another_output_takes_the_place_of_all_folders(self, workbench, table):
        workbench.merge(workbench.run(table, partition_by=("ds", "n")))
        workbench.merge(workbench.run(table, partition_by=("n",)))
        assert [name for name in workbench.files() if not name.startswith("_")] == [
            "n=7/part-00000.parquet",
            "n=8/part-00001.parquet",
        ]
        if workbench.layout.storage.local:
            assert workbench.layout.storage.folders("") == ["_llm", "n=7", "n=8"]
        workbench.merge(workbench.run(table))
        assert [name for name in workbench.files() if not name.startswith("_")] == ["part-00000.parquet"]

    def test_A2_no_rows_are_one_file_with_all_columns(self, workbench, table):
        workbench.merge(workbench.run(table.slice(0, 0), partition_by=("ds",)))
        assert workbench.output().column_names[:3] == ["ds", "x", "n"]

    def test_a_partition_of_someone_else_stops_the_split(self, workbench, table):
        workbench.merge(workbench.run(table, partition_by=("n",)))
        workbench.layout.storage.write_bytes("n=9/theirs.parquet", b"x")
        with pytest.raises(LLMInputError, match=r"someone else.*n=9/theirs\.parquet"):
            workbench.draft(table)

    def test_too_many_partitions_stop_the_split_and_write_nothing(self, workbench, numbers, monkeypatch):
        monkeypatch.setattr(partitions, "MOST_PARTITIONS", 5)
        with pytest.raises(LLMInputError, match="'x' makes more than 5 partitions"):
            workbench.draft(numbers(range(6)), partition_by=("x",))
        assert workbench.files() == []

    def test_too_many_by_the_answers_leave_the_previous_output(self, workbench, numbers, monkeypatch):
        workbench.merge(workbench.run(numbers(range(4))))
        before = workbench.output()
        monkeypatch.setattr(partitions, "MOST_PARTITIONS", 3)
        plan = workbench.run(numbers(range(4)), partition_by=("answer",))
        with pytest.raises(LLMInputError, match="answers that are paid for are kept"):
            workbench.merge(plan)
        assert workbench.output().equals(before)
        assert workbench.files("_llm/staging") == []
