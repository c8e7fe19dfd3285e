import datetime as dt
import io
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llm_provider.dataset.arrow.content_hash import ContentHash
from airflow_llm_provider.dataset.sources.readers.unify import unify
from airflow_llm_provider.dataset.sources.source import open_source
from airflow_llm_provider.errors import LLMInputError
from airflow_llm_provider.testing.arrow_tables import tables


def parquet(table, **options):
    file = io.BytesIO()
    pq.write_table(table, file, **options)
    return file.getvalue()


def column(kind, values):
    return parquet(pa.table({"v": pa.array(values, kind)}))


def digest(table):
    content = ContentHash(table.schema, b"")
    for batch in table.to_batches():
        content.update(batch)
    return content.hexdigest()


class TestParquet:
    @settings(max_examples=40)
    @given(table=tables(nested_dictionaries=True), groups=st.integers(8, 31))
    def test_holds_every_value_bit_for_bit(self, read, table, groups):
        again = read({"a.parquet": parquet(table, row_group_size=groups)}, batch_rows=4)
        assert again.schema.names == table.schema.names
        assert digest(again) == digest(table)

    @settings(max_examples=15)
    @given(table=tables(), cut=st.integers(0, 30))
    def test_many_files_are_one_table(self, read, table, cut):
        files = {"a.parquet": parquet(table.slice(0, cut)), "b.parquet": parquet(table.slice(cut))}
        assert digest(read(files)) == digest(table)

    @pytest.mark.parametrize(
        ("one", "other", "kind"),
        [
            ((pa.null(), [None, None]), (pa.string(), ["ok"]), pa.string()),
            ((pa.null(), [None]), (pa.int64(), [1]), pa.int64()),
            ((pa.int32(), [1]), (pa.int64(), [2**40]), pa.int64()),
            ((pa.float32(), [1.5]), (pa.float64(), [0.1]), pa.float64()),
            ((pa.string(), ["a"]), (pa.large_string(), ["b"]), pa.large_string()),
            ((pa.dictionary(pa.int8(), pa.string()), ["a"]), (pa.string(), ["b"]), pa.string()),
            ((pa.list_(pa.null()), [[]]), (pa.list_(pa.string()), [["x"]]), pa.list_(pa.string())),
            (
                (pa.struct([("a", pa.null())]), [{"a": None}]),
                (pa.struct([("a", pa.int64())]), [{"a": 1}]),
                pa.struct([("a", pa.int64())]),
            ),
        ],
    )
    @pytest.mark.parametrize("swap", [False, True])
    def test_G1_G2_G9_types_unify_when_no_value_changes(self, read, one, other, kind, swap):
        first, second = (other, one) if swap else (one, other)
        table = read({"a.parquet": column(*first), "b.parquet": column(*second)})
        assert table.schema.field("v").type == kind
        assert table.column("v").to_pylist() == [*first[1], *second[1]]

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            (pa.int64(), pa.float64()),
            (pa.int64(), pa.string()),
            (pa.timestamp("us"), pa.timestamp("ns")),
            (pa.timestamp("us", "UTC"), pa.timestamp("us")),
            (pa.timestamp("us", "UTC"), pa.timestamp("us", "Asia/Tokyo")),
            (pa.decimal128(10, 2), pa.decimal128(12, 4)),
            (pa.date32(), pa.timestamp("us")),
            (pa.list_(pa.int64()), pa.list_(pa.string())),
            (pa.struct([("a", pa.int64())]), pa.struct([("b", pa.int64())])),
            (pa.int64(), pa.uint64()),
        ],
    )
    def test_G3_G5_G7_other_types_name_column_types_and_files(self, read, one, other):
        with pytest.raises(LLMInputError) as caught:
            read({"a.parquet": column(one, [None]), "b.parquet": column(other, [None])})
        for part in ("column 'v'", str(one)[:5], str(other)[:5], "a.parquet", "b.parquet"):
            assert part in str(caught.value)

    def test_columns_are_matched_by_name(self, read):
        files = {
            "a.parquet": parquet(pa.table({"x": [1], "y": ["a"]})),
            "b.parquet": parquet(pa.table({"y": ["b"], "z": [2]})),
        }
        table = read(files)
        assert table.to_pylist() == [{"x": 1, "y": "a", "z": None}, {"x": None, "y": "b", "z": 2}]
        assert len(read.notes) == 2

    def test_a_column_that_is_null_everywhere_becomes_text(self, read):
        table = read(
            {
                "a.parquet": parquet(
                    pa.table({"v": pa.nulls(2), "w": pa.array([[], None], pa.list_(pa.null()))})
                )
            }
        )
        assert [field.type for field in table.schema] == [pa.string(), pa.list_(pa.string())]

    def test_dictionaries_inside_lists_become_their_values(self, read):
        kind = pa.list_(pa.dictionary(pa.int8(), pa.string()))
        table = read({"a.parquet": column(kind, [["a", "b"], None, ["a"]])})
        assert table.schema.field("v").type == pa.list_(pa.string())
        assert table.column("v").to_pylist() == [["a", "b"], None, ["a"]]

    def test_repeated_columns_are_refused(self, read):
        table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["v", "v"])
        with pytest.raises(LLMInputError, match="more than one column named 'v'"):
            read({"a.parquet": parquet(table)})

    def test_G15_no_rows_keep_their_schema(self, read):
        schema = pa.schema([("a", pa.decimal128(9, 3)), ("b", pa.list_(pa.int8()))])
        table = read({"a.parquet": parquet(schema.empty_table())})
        assert table.schema == schema
        assert table.num_rows == 0

    @pytest.mark.parametrize("cut", [1, 20, 200, 400])
    def test_G14_a_cut_file_is_named(self, read, cut):
        whole = parquet(pa.table({"v": list(range(100))}))
        with pytest.raises(LLMInputError, match=r"a\.parquet is damaged or cut short"):
            read({"a.parquet": whole[:-cut]})

    def test_a_damaged_page_is_the_files_fault(self, read):
        whole = bytearray(
            parquet(pa.table({"v": ["x" * 50] * 1000}), compression="gzip", use_dictionary=False)
        )
        whole[20:60] = b"\xff" * 40
        with pytest.raises(LLMInputError, match=r"a\.parquet"):
            read({"a.parquet": bytes(whole)})

    def test_G6_timestamps_of_old_writers_keep_their_values(self, read):
        values = [
            dt.datetime.fromisoformat(text)
            for text in ("0001-01-01T00:00:00", "9999-12-31T23:59:59.999999", "2026-01-01T00:00:00")
        ]
        table = pa.table({"v": pa.array(values, pa.timestamp("us"))})
        data = parquet(table, use_deprecated_int96_timestamps=True, store_schema=False)
        assert read({"a.parquet": data}).column("v").to_pylist() == values

    @pytest.mark.parametrize("unit", ["ms", "us"])
    def test_G6_coerced_timestamps_keep_their_values(self, read, unit):
        table = pa.table({"v": pa.array([dt.datetime(2026, 1, 1, 12, 0, 0, 5000)], pa.timestamp("us"))})  # noqa: DTZ001
        again = read({"a.parquet": parquet(table, coerce_timestamps=unit)})
        assert again.column("v").to_pylist() == table.column("v").to_pylist()

    def test_G7_decimals_keep_their_digits(self, read):
        values = [Decimal("1.20"), Decimal("99999999.99"), None]
        table = read({"a.parquet": column(pa.decimal128(10, 2), values)})
        assert [str(v) for v in table.column("v").to_pylist()] == [str(v) for v in values]

    def test_G12_batches_of_large_values_stay_small(self, tmp_path):
        table = pa.table({"v": ["x" * 500_000] * 100})
        pq.write_table(table, tmp_path / "a.parquet", row_group_size=100)
        sizes = [batch.nbytes for batch in open_source(str(tmp_path)).batches(4096)]
        assert sum(sizes) >= 50_000_000
        assert max(sizes) <= 17 << 20

    def test_reads_from_an_object_store_too(self, make_workbench):
        storage = make_workbench("memory").layout.storage
        storage.write_bytes("a.parquet", parquet(pa.table({"v": [1, 2]})))
        batches = list(open_source(storage.root).batches())
        assert batches[0].to_pylist() == [{"v": 1}, {"v": 2}]


class TestUnify:
    @pytest.mark.parametrize("kind", [pa.int8(), pa.string(), pa.list_(pa.struct([("a", pa.float64())]))])
    def test_a_type_with_itself_is_itself(self, kind):
        assert unify(kind, kind) == kind

    def test_two_dictionaries_take_the_widest_index(self):
        one, other = pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int16(), pa.string())
        assert unify(one, other) == pa.dictionary(pa.int32(), pa.string())
        assert unify(one, pa.dictionary(pa.int8(), pa.string(), ordered=True)) is None
