import datetime as dt
import io
import uuid
from decimal import Decimal

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llm_provider.dataset.sources.source import open_source
from airflow_llm_provider.errors import LLMInputError
from tests.dataset.sources.readers.writers import avro, avro_records

UTC = dt.UTC
MOMENT = dt.datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
FIXED = {"type": "fixed", "name": "f3", "size": 3}
ENUM = {"type": "enum", "name": "e", "symbols": ["A", "B"]}
POINT = {
    "type": "record",
    "name": "point",
    "fields": [
        {"name": "x", "type": "long"},
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
    ],
}
SOME_ID = uuid.UUID("12345678-1234-5678-1234-567812345678")


def logical(base, name, **more):
    return {"type": base, "logicalType": name, **more}


class TestNoColumns:
    def test_rows_without_any_column_are_refused(self, read):
        file = io.BytesIO()
        fastavro.writer(file, {"type": "record", "name": "r", "fields": []}, [{}, {}])
        with pytest.raises(LLMInputError, match=r"a\.avro has 2 rows or more, and no column"):
            read({"a.avro": file.getvalue()}, columns_if_empty=["q"])


class TestTypes:
    @pytest.mark.parametrize(
        ("kind", "arrow", "value", "read_as"),
        [
            ("boolean", pa.bool_(), True, True),
            ("int", pa.int32(), -(2**31), -(2**31)),
            ("long", pa.int64(), 2**63 - 1, 2**63 - 1),
            ("float", pa.float32(), 0.5, 0.5),
            ("double", pa.float64(), 0.1, 0.1),
            ("bytes", pa.binary(), b"\xff\x00", b"\xff\x00"),
            ("string", pa.string(), "é\0", "é\0"),
            (FIXED, pa.binary(3), b"abc", b"abc"),
            (ENUM, pa.string(), "B", "B"),
            (logical("int", "date"), pa.date32(), dt.date(1, 1, 1), dt.date(1, 1, 1)),
            (logical("int", "time-millis"), pa.time32("ms"), dt.time(1, 2, 3, 4000), dt.time(1, 2, 3, 4000)),
            (logical("long", "time-micros"), pa.time64("us"), dt.time(1, 2, 3, 4), dt.time(1, 2, 3, 4)),
            (logical("long", "timestamp-millis"), pa.timestamp("ms", "UTC"), MOMENT, MOMENT),
            (logical("long", "timestamp-micros"), pa.timestamp("us", "UTC"), MOMENT, MOMENT),
            (logical("long", "timestamp-nanos"), pa.timestamp("ns", "UTC"), 10**18 + 1, 10**18 + 1),
            (
                logical("long", "local-timestamp-micros"),
                pa.timestamp("us"),
                MOMENT.replace(tzinfo=None),
                None,
            ),
            (logical("string", "uuid"), pa.string(), SOME_ID, str(SOME_ID)),
            (
                logical("bytes", "decimal", precision=38, scale=2),
                pa.decimal128(38, 2),
                Decimal("-1.20"),
                None,
            ),
            (
                logical("bytes", "decimal", precision=50, scale=2),
                pa.decimal256(50, 2),
                Decimal(f"{10**40}.01"),
                None,
            ),
            (logical("string", "nosuch"), pa.string(), "x", "x"),
            ({"type": "array", "items": "long"}, pa.list_(pa.int64()), [1, 2], [1, 2]),
            ({"type": "map", "values": "long"}, pa.map_(pa.string(), pa.int64()), {"k": 1}, [("k", 1)]),
            (
                POINT,
                pa.struct([("x", pa.int64()), ("id", pa.string())]),
                {"x": 1, "id": SOME_ID},
                {"x": 1, "id": str(SOME_ID)},
            ),
            (
                {"type": "array", "items": POINT},
                None,
                [{"x": 1, "id": SOME_ID}],
                [{"x": 1, "id": str(SOME_ID)}],
            ),
            ({"type": "map", "values": ["null", POINT]}, None, {"k": None}, [("k", None)]),
        ],
        ids=str,
    )
    def test_every_type_has_its_arrow_type(self, read, kind, arrow, value, read_as):
        fields = [{"name": "v", "type": kind}, {"name": "maybe", "type": ["null", "string"]}]
        table = read({"a.avro": avro_records(fields, [{"v": value, "maybe": None}])})
        column = table.column("v")
        if arrow is not None:
            named = str(column.type).replace(" not null", "").replace(" ('v')", "").replace("element", "item")
            assert named == str(arrow)
        got = column.cast(pa.int64()) if "nanos" in str(kind) else column
        assert got.to_pylist() == [value if read_as is None else read_as]
        assert [field.nullable for field in table.schema] == [False, True]

    def test_a_named_type_may_be_used_again(self, read):
        fields = [{"name": "p", "type": POINT}, {"name": "q", "type": ["null", "a.b.point"]}]
        point = {"x": 1, "id": SOME_ID}
        table = read({"a.avro": avro_records(fields, [{"p": point, "q": point}, {"p": point, "q": None}])})
        shown = {"x": 1, "id": str(SOME_ID)}
        assert table.to_pylist() == [{"p": shown, "q": shown}, {"p": shown, "q": None}]

    def test_H9_a_union_of_types_is_json_text_and_says_so(self, read):
        fields = [{"name": "v", "type": ["null", "long", "string", {"type": "array", "items": "long"}]}]
        table = read({"a.avro": avro_records(fields, [{"v": v} for v in (1, "x", None, [1, 2])])})
        assert table.column("v").to_pylist() == ["1", '"x"', None, "[1,2]"]
        assert "columns 'v' hold unions" in read.notes[0]

    def test_a_record_that_holds_itself_is_named(self, read):
        tree = {"type": "record", "name": "t", "fields": [{"name": "next", "type": ["null", "t"]}]}
        with pytest.raises(
            LLMInputError, match=r"a\.avro, column 'v': the Avro record 'a\.b\.t' holds itself"
        ):
            read({"a.avro": avro_records([{"name": "v", "type": tree}], [{"v": {"next": None}}])})

    def test_a_file_without_records_has_no_columns(self, read):
        file = io.BytesIO()
        fastavro.writer(file, fastavro.parse_schema("string"), ["x"])
        with pytest.raises(LLMInputError, match="holds no records"):
            read({"a.avro": file.getvalue()})

    def test_a_date_that_python_cannot_hold_is_said_and_not_changed(self, read):
        with pytest.raises(LLMInputError, match="the block at byte .* beyond the year 9999"):
            read(
                {
                    "a.avro": avro_records(
                        [{"name": "v", "type": logical("long", "timestamp-micros")}], [{"v": 10**18}]
                    )
                }
            )

    @settings(max_examples=15)
    @given(
        rows=st.lists(
            st.fixed_dictionaries(
                {
                    "n": st.none() | st.integers(-(2**63), 2**63 - 1),
                    "f": st.none() | st.floats(allow_nan=False),
                    "t": st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
                    "b": st.none() | st.binary(max_size=8),
                    "l": st.none() | st.lists(st.none() | st.integers(-5, 5), max_size=3),
                }
            ),
            max_size=30,
        ),
        codec=st.sampled_from(["null", "deflate", "bzip2", "xz"]),
        batch_rows=st.integers(1, 40),
    )
    def test_holds_every_value(self, read, rows, codec, batch_rows):
        kinds = {
            "n": "long",
            "f": "double",
            "t": "string",
            "b": "bytes",
            "l": {"type": "array", "items": ["null", "int"]},
        }
        fields = [{"name": name, "type": ["null", kind]} for name, kind in kinds.items()]
        data = avro_records(fields, rows, codec=codec, sync_interval=20)
        assert read({"a.avro": data}, batch_rows=batch_rows).to_pylist() == rows


class TestDamage:
    FIELDS = [{"name": "v", "type": "string"}]  # noqa: RUF012
    DATA = avro_records(FIELDS, [{"v": f"value {n}"} for n in range(20)], sync_interval=60)

    def test_every_cut_is_an_error_or_ends_after_a_whole_block(self, attempt):
        """A file that is cut between two blocks is a sound Avro file: nothing in it says how many there were."""
        ends = {block.offset + block.size for block in fastavro.block_reader(io.BytesIO(self.DATA))}
        first = min(block.offset for block in fastavro.block_reader(io.BytesIO(self.DATA)))
        for cut in sorted(
            {*range(0, len(self.DATA), 3), *ends, first, *(end + 1 for end in ends)} - {len(self.DATA) + 1}
        ):
            table, message = attempt({"a.avro": self.DATA[:cut]})
            if cut in ends or cut == first:
                whole = [{"v": f"value {n}"} for n in range(20)]
                assert table.to_pylist() == whole[: table.num_rows]
            else:
                assert table is None, cut
                assert "a.avro" in message

    def test_a_block_whose_count_is_wrong_is_named(self, attempt):
        first = next(iter(fastavro.block_reader(io.BytesIO(self.DATA))))
        for count in (0, 2, 126, 1):
            broken = bytearray(self.DATA)
            broken[first.offset] = count
            table, message = attempt({"a.avro": bytes(broken)})
            assert table is None
            assert f"a.avro, the block at byte {first.offset} is damaged" in message

    def test_a_library_that_a_codec_needs_is_named(self, attempt):
        data = self.DATA.replace(b"\x14avro.codec\x08null", b"\x14avro.codec\x0csnappy")
        assert data != self.DATA
        table, message = attempt({"a.avro": data})
        assert table is None
        assert "a.avro" in message

    def test_large_blocks_come_in_small_batches(self, tmp_path):
        (tmp_path / "a.avro").write_bytes(avro(pa.table({"n": list(range(1000))}), sync_interval=10**6))
        assert [batch.num_rows for batch in open_source(str(tmp_path)).batches(300)] == [300, 300, 300, 100]
