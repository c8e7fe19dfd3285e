"""The output as other people's readers see it."""

import dataclasses
import datetime as dt
import os
import re
from decimal import Decimal

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from airflow_llm_provider.dataset.arrow.content_hash import ContentHash
from airflow_llm_provider.engine.status import RowStatus

MOMENT = dt.datetime(2026, 1, 2, 3, 4, 5, 678901)  # noqa: DTZ001 -- Arrow takes the zone from the type
#: One column of each type, with its limits; the last row of each is null.
COLUMNS = {
    "bool": (pa.bool_(), [True, False]),
    "i8": (pa.int8(), [-128, 127]),
    "i64": (pa.int64(), [9007199254740993, -(2**63)]),
    "u64": (pa.uint64(), [2**64 - 1, 0]),
    "f32": (pa.float32(), [0.1, float("inf")]),
    "f64": (pa.float64(), [0.1, -0.0]),
    "text": (pa.string(), ["007", "é\n\U0001f600"]),
    "large": (pa.large_string(), ["NA", ""]),
    "bytes": (pa.binary(), [b"\xff\x00", b""]),
    "money": (pa.decimal128(12, 2), [Decimal("1.20"), Decimal("-9999999999.99")]),
    "day": (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    "at_ms": (pa.timestamp("ms"), [MOMENT.replace(microsecond=678000), dt.datetime(1, 1, 1)]),  # noqa: DTZ001
    "at_us": (pa.timestamp("us"), [MOMENT, dt.datetime(9999, 12, 31)]),  # noqa: DTZ001
    "at_ns": (pa.timestamp("ns"), [1, -1]),
    "zoned": (pa.timestamp("us", "UTC"), [MOMENT, dt.datetime(1969, 12, 31)]),  # noqa: DTZ001
    "time": (pa.time64("us"), [dt.time(23, 59, 59, 999999), dt.time(0)]),
    "list": (pa.list_(pa.int64()), [[1, None], []]),
    "struct": (
        pa.struct([("a", pa.int64()), ("b", pa.string())]),
        [{"a": 1, "b": None}, {"a": None, "b": "x"}],
    ),
}
#: Rows enough for several part files.
REPEATS = 8


def table_of_columns():
    columns = {name: pa.array([*values, None] * REPEATS, kind) for name, (kind, values) in COLUMNS.items()}
    return pa.table({"x": pa.array(range(3 * REPEATS), pa.int64()), **columns})


def digest(table):
    content = ContentHash(table.schema, b"")
    for batch in table.to_batches():
        content.update(batch)
    return content.hexdigest()


@pytest.fixture
def table():
    return table_of_columns()


@pytest.fixture
def output(make_workbench, table, tmp_path):
    """A folder with an output of several parts and of rejected rows, and with all that is kept beside it."""
    bench = make_workbench("local")

    def reply(row, index):
        answer = bench.reply(row, index)
        refused = row["x"] % 5 == 0
        return dataclasses.replace(answer, status=RowStatus.REFUSED, answer=None) if refused else answer

    plan = bench.split(table)
    for entry in plan.shards:
        bench.answer(entry, reply=reply)
    bench.merge(plan, bytes_per_file=1, rows_per_group=5)
    # DuckDB and Polars take the odd characters of the workbench's folders for patterns.
    plain = tmp_path / "plain"
    os.rename(bench.layout.destination, plain)  # noqa: PTH104
    assert len(list(plain.glob("part-*.parquet"))) > 2
    assert (plain / "_rejects.parquet").exists()
    return plain


class TestArrow:
    def test_reads_the_folder_bit_for_bit(self, output, table):
        again = ds.dataset(output).to_table()
        assert again.schema.names[: len(table.schema)] == table.schema.names
        assert again.select(table.schema.names).schema == table.schema
        assert digest(again.select(table.schema.names)) == digest(table)


class TestPandas:
    def test_reads_the_folder_with_every_value(self, output, table):
        frame = pd.read_parquet(output, dtype_backend="pyarrow")
        assert list(frame["x"]) == table.column("x").to_pylist()
        for name, (kind, _) in COLUMNS.items():
            assert frame[name].dtype.pyarrow_dtype == kind, name
            values = frame[name].array.__arrow_array__()
            shown = pa.int64() if name == "at_ns" else kind
            assert values.cast(shown).to_pylist() == table.column(name).cast(shown).to_pylist(), name


class TestDuckDB:
    #: What DuckDB calls a type of ours: timestamps keep their unit, unsigned integers their range.
    TYPES = {  # noqa: RUF012
        "bool": "BOOLEAN",
        "i8": "TINYINT",
        "i64": "BIGINT",
        "u64": "UBIGINT",
        "f32": "FLOAT",
        "f64": "DOUBLE",
        "text": "VARCHAR",
        "large": "VARCHAR",
        "bytes": "BLOB",
        "money": "DECIMAL(12,2)",
        "day": "DATE",
        "at_ms": "TIMESTAMP",
        "at_us": "TIMESTAMP",
        "at_ns": "TIMESTAMP_NS",
        "zoned": "TIMESTAMP WITH TIME ZONE",
        "time": "TIME",
        "list": "BIGINT[]",
        "struct": "STRUCT(a BIGINT, b VARCHAR)",
    }

    def test_reads_the_parts_with_every_value_in_order(self, output, table):
        relation = duckdb.sql(f"SELECT * FROM read_parquet('{output}/part-*.parquet') ORDER BY x")  # noqa: S608
        types = {
            name: str(kind).replace('"', "")
            for name, kind in zip(relation.columns, relation.types, strict=True)
        }
        assert {name: types[name] for name in COLUMNS} == self.TYPES
        again = relation.to_arrow_table()
        for name, (kind, _) in COLUMNS.items():
            column = again.column(name).cast(kind)
            assert column.cast(pa.int64() if name == "at_ns" else kind).to_pylist() == (
                table.column(name).cast(pa.int64() if name == "at_ns" else kind).to_pylist()
            ), name
        statuses = duckdb.sql(
            f"SELECT llm_status, count(*) FROM read_parquet('{output}/part-*.parquet') GROUP BY 1 ORDER BY 1"  # noqa: S608
        )
        assert statuses.fetchall() == [("refused", 5), ("success", 19)]

    def test_takes_names_with_an_underscore_too(self, output):
        """So the pages tell its users to give part-*.parquet."""
        count = f"SELECT count(*) FROM read_parquet('{output}/*.parquet', union_by_name=true)"  # noqa: S608
        assert duckdb.sql(count).fetchall() == [(24 + 5,)]


class TestPolars:
    def test_reads_the_parts_with_every_value_in_order(self, output, table):
        frame = pl.read_parquet(output / "part-*.parquet")
        assert frame["x"].to_list() == table.column("x").to_pylist()
        again = frame.to_arrow()
        for name, (kind, _) in COLUMNS.items():
            shown = pa.int64() if name == "at_ns" else kind
            assert again.column(name).cast(kind).cast(shown).to_pylist() == (
                table.column(name).cast(shown).to_pylist()
            ), name
        assert frame.schema["money"] == pl.Decimal(12, 2)
        assert frame.schema["zoned"] == pl.Datetime("us", "UTC")
        assert frame.schema["at_ns"] == pl.Datetime("ns")
        assert frame.schema["u64"] == pl.UInt64


class TestSpark:
    """Hadoop's rule, by which Spark, Hive and Trino list a folder: names with ``_`` or ``.`` in front are not there."""

    @staticmethod
    def listed(folder):
        for here, folders, files in os.walk(folder):
            folders[:] = [name for name in folders if name[0] not in "._" or "=" in name]
            yield from (os.path.relpath(f"{here}/{name}", folder) for name in files if name[0] not in "._")

    def test_lists_the_parts_and_nothing_else(self, output):
        listed = sorted(self.listed(output))
        assert listed == sorted(path.name for path in output.glob("part-*.parquet"))
        assert all(re.fullmatch(r"part-\d{5}\.parquet", name) for name in listed)

    def test_finds_no_type_that_it_cannot_read(self, output):
        """Spark knows no 8-byte unsigned integers and no times: these columns are what the input was, untouched."""
        schema = ds.dataset(output).schema
        ours = [field for field in schema if field.name == "answer" or field.name.startswith("llm_")]
        assert {str(field.type) for field in ours} <= {"string", "int64", "int32", "double"}


class TestPartitions:
    @pytest.fixture
    def output(self, bench, table, tmp_path):
        bench.merge(bench.run(table.select(["x", "text", "bool"]), partition_by=("text", "bool")))
        plain = tmp_path / "plain"
        os.rename(bench.layout.destination, plain)  # noqa: PTH104
        return plain

    def rows(self, table):
        return [(row["x"], row["text"], row["bool"]) for row in table.to_pylist()]

    def test_are_columns_again(self, output, table):
        wanted = [
            (x, text, None if flag is None else str(flag).lower()) for x, text, flag in self.rows(table)
        ]
        pattern = f"{output}/text=*/**/part-*.parquet"
        options = "hive_partitioning=true, hive_types={'text': VARCHAR, 'bool': VARCHAR}"
        by_duckdb = duckdb.sql(f"SELECT * FROM read_parquet('{pattern}', {options})").to_arrow_table()  # noqa: S608
        by_polars = pl.read_parquet(
            pattern, hive_partitioning=True, hive_schema={"text": pl.String, "bool": pl.String}
        ).to_arrow()
        folders = pa.schema([("text", pa.string()), ("bool", pa.string())])
        by_arrow = ds.dataset(output, partitioning=ds.partitioning(folders, flavor="hive")).to_table()
        for again in (by_duckdb, by_polars, by_arrow):
            assert sorted(self.rows(again), key=str) == sorted(wanted, key=str)
