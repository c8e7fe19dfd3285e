import datetime as dt
from decimal import Decimal

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings

from airflow_llm_provider.dataset.arrow.content_hash import ContentHash
from airflow_llm_provider.dataset.sources.memory import MemorySource
from airflow_llm_provider.errors import LLMInputError, LLMStateError
from airflow_llm_provider.testing.arrow_tables import tables

ROWS = {"id": [1, 2, 3], "text": ["a", None, "c"]}


def table_of(source, **options):
    return pa.Table.from_batches(list(source.batches(**options)), source.schema)


def digest(table):
    content = ContentHash(table.schema, b"")
    for batch in table.to_batches():
        content.update(batch)
    return content.hexdigest()


class Stream:
    """Something that is known by Arrow's C stream alone."""

    def __init__(self, table):
        self._table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


class TestMemorySource:
    def test_nulls_in_a_column_that_is_declared_to_have_none_are_an_error_that_names_it(self):
        schema = pa.schema([pa.field("id", pa.int64()), pa.field("text", pa.string(), nullable=False)])
        with pytest.raises(LLMInputError, match="column 'text' of the pyarrow Table is declared not null"):
            table_of(MemorySource(pa.Table.from_arrays(pa.table(ROWS).columns, schema=schema)))

    @pytest.mark.parametrize(
        "make",
        [
            pd.DataFrame,
            pa.table,
            pa.record_batch,
            lambda rows: pa.table(rows).to_reader(),
            lambda rows: Stream(pa.table(rows)),
            pl.DataFrame,
            lambda rows: duckdb.from_arrow(pa.table(rows)),
        ],
        ids=["pandas", "table", "batch", "reader", "stream", "polars", "duckdb"],
    )
    def test_holds_the_rows_of(self, make):
        source = MemorySource(make(ROWS))
        assert source.schema.names == ["id", "text"]
        assert source.schema.field("id").type == pa.int64()
        assert table_of(source).to_pydict() == ROWS
        (read,) = source.snapshot()
        assert read["uri"].startswith("memory: the ")
        assert read["size"] > 0
        assert len(read["version"]) == 32

    @settings(max_examples=12)
    @given(table=tables())
    def test_holds_every_value_bit_for_bit(self, table):
        source = MemorySource(table)
        again = table_of(source, batch_rows=7)
        assert again.schema.names == table.schema.names
        assert digest(again) == digest(table)

    def test_is_known_by_its_values_and_not_by_its_chunks(self):
        whole, cut = MemorySource(pa.table(ROWS)), MemorySource(pa.table(ROWS))
        table_of(whole)
        table_of(cut, batch_rows=1)
        assert whole.snapshot()[0]["version"] == cut.snapshot()[0]["version"]
        other = MemorySource(pa.table({**ROWS, "id": [1, 2, 4]}))
        table_of(other)
        assert other.snapshot()[0]["version"] != whole.snapshot()[0]["version"]

    def test_large_values_come_in_small_batches(self):
        source = MemorySource(pa.table({"v": ["x" * 500_000] * 100}))
        batches = list(source.batches(4096))
        assert sum(batch.num_rows for batch in batches) == 100
        assert max(batch.nbytes for batch in batches) <= 8 << 20

    def test_a_stream_is_read_once_and_a_table_again(self):
        source = MemorySource(pa.table(ROWS))
        assert table_of(source) == table_of(source)
        stream = MemorySource(pa.table(ROWS).to_reader())
        table_of(stream)
        with pytest.raises(LLMInputError, match="is a stream that was read already"):
            table_of(stream)

    def test_a_stream_that_breaks_off_is_an_error_without_its_words(self):
        def batches():
            yield pa.record_batch({"v": [1]})
            raise ValueError("SECRET-ROW")

        source = MemorySource(pa.RecordBatchReader.from_batches(pa.schema([("v", pa.int64())]), batches()))
        with pytest.raises(LLMStateError, match="could not be read to its end") as caught:
            table_of(source)
        assert "SECRET-ROW" not in str(caught.value)

    @pytest.mark.parametrize(
        ("kind", "values", "lasting"),
        [
            (pa.null(), [None, None], pa.string()),
            (pa.string_view(), ["a", None], pa.large_string()),
            (pa.binary_view(), [b"a", None], pa.large_binary()),
            (pa.list_(pa.string_view()), [["a", None], []], pa.list_(pa.large_string())),
            (pa.list_view(pa.int64()), [[1], None, [2, 3], []], pa.list_(pa.int64())),
            (
                pa.map_(pa.string(), pa.string_view()),
                [[("k", "v")], None],
                pa.map_(pa.string(), pa.large_string()),
            ),
            (pa.list_(pa.int8(), 2), [[1, 2], None], pa.list_(pa.int8(), 2)),
            (pa.decimal32(5, 2), [Decimal("1.20"), None], pa.decimal32(5, 2)),
            (pa.decimal256(50, 2), [Decimal("1.20"), None], pa.decimal256(50, 2)),
            (pa.float16(), [np.float16(1.5), None], pa.float16()),
            (pa.time32("s"), [dt.time(1, 2, 3), None], pa.time32("ms")),
            (pa.timestamp("s"), [dt.datetime(2026, 1, 1), None], pa.timestamp("ms")),  # noqa: DTZ001
            (pa.date64(), [dt.date(2026, 1, 1), None], pa.date32()),
            (pa.duration("ns"), [pd.Timedelta(5), None], pa.duration("ns")),
            (pa.dictionary(pa.int8(), pa.int64()), [5, None], pa.int64()),
            (pa.dictionary(pa.int8(), pa.string()), ["a", None], pa.dictionary(pa.int8(), pa.string())),
        ],
        ids=str,
    )
    def test_types_are_those_that_the_output_will_have(self, kind, values, lasting):
        source = MemorySource(pa.table({"v": pa.array(values, kind)}))
        assert source.schema.field("v").type == lasting
        assert table_of(source).column("v").to_pylist() == pa.array(values, kind).to_pylist()

    def test_runs_are_written_out(self):
        runs = pa.RunEndEncodedArray.from_arrays([2, 3], pa.array(["a", None]))
        assert table_of(MemorySource(pa.table({"v": runs}))).column("v").to_pylist() == ["a", "a", None]

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            (5, "the source is a int: give a path or URL, a pandas DataFrame"),
            ([{"a": 1}], "the source is a list"),
            (pl.Series([1]), "cannot be read as an Arrow table"),
            (pa.table({}), "has no columns"),
            (pd.DataFrame(), "has no columns"),
            (pa.Table.from_arrays([pa.array([1])] * 2, names=["v", "v"]), "more than one column named 'v'"),
            (
                pa.table({"v": pa.array([None], pa.month_day_nano_interval())}),
                "column 'v' .* no Parquet file",
            ),
            (pa.table({"v": pa.array([{}], pa.struct([]))}), "column 'v' .* no Parquet file"),
            (pd.DataFrame({"v": ["SECRET-ROW", 5]}), "column 'v' of the DataFrame holds values"),
            (pd.DataFrame({5: [1]}), r"names are no text, \[5\]"),
            (
                pd.DataFrame({"v": [1]}, index=pd.Index([1], name="v")),
                "an index and a column of the same name",
            ),
        ],
    )
    def test_what_is_no_table_is_refused(self, data, message):
        with pytest.raises(LLMInputError, match=message) as caught:
            MemorySource(data)
        assert "SECRET-ROW" not in str(caught.value)

    def test_a_value_that_would_change_is_refused(self):
        source = MemorySource(pa.table({"v": pa.array([86_400_001], pa.date64())}))
        with pytest.raises(LLMInputError, match="column 'v' .* holds a value of type date64"):
            table_of(source)


class TestPandas:
    def test_G2_D6_missing_values_are_null_and_integers_stay_integers(self):
        frame = pd.DataFrame(
            {
                "text": ["a", None, float("nan")],
                "n": pd.array([9007199254740993, None, 1], "Int64"),
                "f": [1.5, float("nan"), None],
                "at": pd.to_datetime(["2026-01-01T00:00:00.000000001", None, None]),
                "kind": pd.Categorical(["a", None, "a"]),
            }
        )
        table = table_of(MemorySource(frame))
        assert table.column("text").to_pylist() == ["a", None, None]
        assert table.column("n").to_pylist() == [9007199254740993, None, 1]
        assert table.column("f").to_pylist() == [1.5, None, None]
        assert table.column("at").type == pa.timestamp("ns")
        assert table.column("at").cast(pa.int64()).to_pylist()[0] % 1000 == 1
        assert table.column("kind").to_pylist() == ["a", None, "a"]

    def test_named_levels_of_the_index_are_columns_and_others_are_not(self):
        frame = pd.DataFrame({"v": [1, 2]}, index=pd.Index(["x", "y"], name="id"))
        assert table_of(MemorySource(frame)).to_pydict() == {"id": ["x", "y"], "v": [1, 2]}
        assert table_of(MemorySource(frame[["v"]].rename_axis(None))).to_pydict() == {"v": [1, 2]}

    def test_no_metadata_of_pandas_stays_behind(self):
        assert not MemorySource(pa.Table.from_pandas(pd.DataFrame(ROWS))).schema.metadata
