import csv
import gzip
import io

import pyarrow as pa
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llm_provider.dataset.sources.source import open_source
from airflow_llm_provider.errors import LLMInputError, LLMStateError
from airflow_llm_provider.jobs import SplitOptions

CELLS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\r"), max_size=8)


class EndpointConnectionError(Exception):
    """As botocore has it: no OSError."""


def rows(table):
    return table.to_pylist()


class TestCsv:
    @pytest.mark.parametrize(
        "cell", ["NA", "null", "n/a", "None", "NaN", "007", "1e5", "TRUE", " x ", "2026-01-01", ""]
    )
    @pytest.mark.parametrize("others", [[], ["hello"]])
    def test_H4_H5_cells_are_text_as_written(self, read, cell, others):
        text = "id,text\n" + "".join(f"{n},{value}\n" for n, value in enumerate([cell, *others]))
        table = read({"a.csv": text.encode()})
        assert table.schema == pa.schema([("id", pa.string()), ("text", pa.string())])
        assert table.column("text").to_pylist() == [cell, *others]

    def test_H6_a_late_text_changes_nothing(self, read):
        text = "v\n" + "1\n" * 3000 + "oops\n"
        assert read({"a.csv": text.encode()}).column("v").to_pylist() == ["1"] * 3000 + ["oops"]

    @pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
    def test_H1_a_byte_order_mark_is_no_part_of_the_header(self, read, encoding):
        assert rows(read({"a.csv": "id,text\n1,café\n".encode(encoding)})) == [{"id": "1", "text": "café"}]

    def test_H1_a_byte_order_mark_wins_over_the_option(self, read):
        assert rows(read({"a.csv": b"\xff\xfe" + "id\né\n".encode("utf-16-le")}, encoding="utf-16-le")) == [
            {"id": "é"}
        ]
        assert rows(read({"a.csv": b"\xef\xbb\xbf" + "id\né\n".encode()}, encoding="cp1252")) == [{"id": "é"}]

    @pytest.mark.parametrize(
        ("data", "place"),
        [
            ("id,text\n1,退款".encode("gbk"), "row 1 (line 2), byte 10 is 0xcd"),
            (b'id,text\n1,"a\nb"\n2,caf\xe9\n', "row 2 (line 4), byte 21 is 0xe9"),
            (b"caf\xe9,text\n1,2\n", "the header row, byte 3 is 0xe9"),
            (
                b"id,text\n" + b"1,xxxxxxxxx\n" * 50_000 + b"1,\xff",
                "row 50001 (line 50002), byte 600010 is 0xff",
            ),
        ],
    )
    def test_H2_other_encodings_name_row_byte_and_remedy(self, read, data, place):
        with pytest.raises(LLMInputError) as caught:
            read({"a.csv": data})
        message = str(caught.value)
        assert place in message
        assert "a.csv" in message
        assert "encoding=" in message

    def test_H2_the_encoding_option_reads_them(self, read):
        assert rows(read({"a.csv": "id,text\n1,退款".encode("gbk")}, encoding="gbk")) == [
            {"id": "1", "text": "退款"}
        ]

    @pytest.mark.parametrize("encoding", ["base64", "rot13", "undefined", "a\0b", ""])
    def test_what_is_no_text_encoding_is_refused(self, read, encoding):
        with pytest.raises(LLMInputError, match="no text encoding"):
            read({"a.csv": b"x\n1\n"}, encoding=encoding)

    @pytest.mark.parametrize("encoding", ["utf-16", "punycode"])
    def test_a_file_that_is_not_of_its_encoding_as_a_whole_is_refused(self, read, encoding):
        with pytest.raises(LLMInputError, match=f"is not {encoding}.*give the file's encoding="):
            read({"a.csv": b"x,y\n1,2\n"}, encoding=encoding)

    def test_an_unknown_encoding_is_refused(self, read):
        with pytest.raises(LLMInputError, match="encoding is 'latin-99'"):
            read({"a.csv": b"x\n"}, encoding="latin-99")

    def test_utf_16_without_a_mark_is_refused(self, read):
        with pytest.raises(LLMInputError, match="utf-16-le"):
            read({"a.csv": "id,text\n1,x\n".encode("utf-16-le")})

    def test_H8_newlines_in_quotes_stay(self, read):
        table = read({"a.csv": b'id,Other\r\n1,"line one\nline ""two""\r\nthree"\r\n'})
        assert rows(table) == [{"id": "1", "Other": 'line one\nline "two"\r\nthree'}]

    def test_H8_repeated_headers_are_refused_by_name(self, read):
        with pytest.raises(LLMInputError, match="more than one column named 'Other'"):
            read({"a.csv": b'id,Other,Other\n1,"line one\nline two",x\n'})

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            (b"a,b\n1,2\n3\n", "line 3: 1 cells where the header has 2"),
            (b"a,b\n1,2,3\n", "line 2: 3 cells where the header has 2"),
            (b'a,b\n1,"2\n', r"line 2: no sound CSV"),
            (b'a,b\n1,"2"x\n', r"line 2: no sound CSV"),
        ],
    )
    def test_unsound_csv_names_the_line(self, read, data, message):
        with pytest.raises(LLMInputError, match=message):
            read({"a.csv": data})

    def test_blank_lines_are_no_rows(self, read):
        assert rows(read({"a.csv": b"\n\na,b\n\n1,2\n\n\n3,4\n\n"})) == [
            {"a": "1", "b": "2"},
            {"a": "3", "b": "4"},
        ]

    def test_a_quoted_blank_is_a_row(self, read):
        assert rows(read({"a.csv": b'a\n""\nx\n'})) == [{"a": ""}, {"a": "x"}]

    @pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
    def test_any_line_end_will_do(self, read, end):
        assert rows(read({"a.csv": end.join([b"a,b", b"1,2", b"3,4"])})) == [
            {"a": "1", "b": "2"},
            {"a": "3", "b": "4"},
        ]

    def test_long_cells_and_nuls_pass(self, read):
        table = read({"a.csv": b"a,b\n" + b"x" * 300_000 + b",n\0u\n"})
        assert len(table.column("a")[0].as_py()) == 300_000
        assert table.column("b").to_pylist() == ["n\0u"]

    def test_delimiters(self, read):
        assert rows(read({"t/a.tsv": b"a\tb\n1\t2,5\n"}, "t")) == [{"a": "1", "b": "2,5"}]
        assert rows(read({"u/a.csv": b"a;b\n1;2,5\n"}, "u", delimiter=";")) == [{"a": "1", "b": "2,5"}]
        with pytest.raises(LLMInputError, match="delimiter is '::'"):
            read({"u/a.csv": b"a;b\n1;2,5\n"}, "u", delimiter="::")

    def test_A2_a_header_alone_is_no_rows_with_a_schema(self, read):
        table = read({"a.csv": b"id,text\n"})
        assert table.num_rows == 0
        assert table.column_names == ["id", "text"]

    def test_A2_an_empty_file_takes_the_columns_that_are_needed(self, read):
        with pytest.raises(LLMInputError, match="is empty: nothing names its columns"):
            read({"a.csv": b""})
        assert read({"a.csv": b""}, columns_if_empty=["q"]).schema == pa.schema([("q", pa.string())])
        assert read.notes

    def test_an_empty_file_among_others_adds_nothing(self, read):
        assert rows(read({"a.csv": b"", "b.csv": b"x\n1\n"})) == [{"x": "1"}]

    def test_files_with_other_columns_are_filled_with_nulls_and_told(self, read):
        table = read({"a.csv": b"x,y\n1,2\n", "b.csv": b"y,z\n3,4\n"})
        assert rows(table) == [{"x": "1", "y": "2", "z": None}, {"x": None, "y": "3", "z": "4"}]
        assert read.notes == [
            "column 'x' is missing in 1 of 2 input files: it is null there",
            "column 'z' is missing in 1 of 2 input files: it is null there",
        ]

    @pytest.mark.parametrize("ending", ["gz", "zst"])
    def test_packed_files_are_unpacked(self, read, attempt, ending):
        data = b"id,text\n" + b"1,hello\n" * 1000
        packed = gzip.compress(data) if ending == "gz" else pa.compress(data, "zstd", asbytes=True)
        assert read({f"a.csv.{ending}": packed}).num_rows == 1000
        for cut in (packed[:-5], packed[: len(packed) // 2], packed[:3], b""):
            table, message = attempt({f"a.csv.{ending}": cut}, columns_if_empty=["id"])
            assert table.num_rows == 0 if cut == b"" else "a.csv" in message

    def test_a_packed_file_with_a_damaged_byte_is_an_input_error_that_names_it(self, attempt):
        packed = bytearray(
            gzip.compress(b"id,text\n" + b"".join(b"%d,%x\n" % (n, n * n) for n in range(3000)))
        )
        # The first byte after the header: no block of data has this type.
        packed[10] |= 0b110
        _, message = attempt({"a.csv.gz": bytes(packed)})
        assert "a.csv.gz is damaged or cut short: error: Error -3" in message

    def test_a_storage_with_errors_of_its_own_could_not_be_read(self):
        class Down(MemoryFileSystem):
            cachable = False

            def _open(self, path, mode="rb", **options):
                if mode == "rb":
                    raise EndpointConnectionError("no route to https://me:secret@bucket.example/a.csv?sig=1")
                return super()._open(path, mode, **options)

        storage = Down()
        storage.pipe_file("/down/a.csv", b"id,text\n1,x\n")
        with pytest.raises(
            LLMStateError, match=r"a\.csv could not be read: EndpointConnectionError"
        ) as caught:
            open_source("memory://down/a.csv", resolver=lambda _: (storage, "/down/a.csv"))
        assert "secret" not in str(caught.value)

    def test_batches_are_bounded_by_rows_and_by_size(self, tmp_path):
        (tmp_path / "a.csv").write_text("v\n" + "x\n" * 100)
        assert [b.num_rows for b in open_source(str(tmp_path)).batches(30)] == [30, 30, 30, 10]
        (tmp_path / "a.csv").write_text("v\n" + ("x" * 3_000_000 + "\n") * 7)
        assert [b.num_rows for b in open_source(str(tmp_path)).batches(4096)] == [3, 3, 1]

    @settings(max_examples=60)
    @given(table=st.lists(st.tuples(CELLS, CELLS), max_size=8), end=st.sampled_from(["\n", "\r\n"]))
    def test_reads_what_the_csv_module_writes(self, read, table, end):
        text = io.StringIO()
        writer = csv.writer(text, lineterminator=end)
        writer.writerows([("a", "b"), *table])
        assert rows(read({"a.csv": text.getvalue().encode()}, batch_rows=3)) == [
            {"a": a, "b": b} for a, b in table
        ]

    @settings(max_examples=150)
    @given(
        data=st.lists(
            st.sampled_from([b"a", b",", b"\n", b'"', b"\r", b"\0", b"\xff", "é".encode(), b";"]), max_size=25
        )
    )
    def test_broken_bytes_are_right_rows_or_an_error_with_a_place(self, attempt, data):
        raw = b"h,k\n" + b"".join(data)
        table, message = attempt({"a.csv": raw})
        if table is None:
            assert "a.csv" in message
            assert "line" in message or "header row" in message
            return
        text = raw.decode()
        expected = [record for record in csv.reader(io.StringIO(text, newline="")) if record][1:]
        assert [[row["h"], row["k"]] for row in rows(table)] == expected


class TestTypes:
    TYPES = {  # noqa: RUF012
        "n": "int64",
        "f": "double",
        "d": "decimal(5, 2)",
        "b": "boolean",
        "day": "date",
        "at": "timestamp",
        "z": "timestamp_utc",
    }
    HEADER = b"id,n,f,d,b,day,at,z\n"

    def test_columns_are_what_they_are_declared_to_be(self, read):
        row = b"007,007,1.5,1.2,TRUE,2026-01-31,2026-01-31 08:30:00.5,2026-01-31T08:30:00+02:00\n"
        table = read({"a.csv": self.HEADER + row + b"008,,,,,,,\n"}, types=self.TYPES)
        assert [str(kind) for kind in table.schema.types] == [
            "string",
            "int64",
            "double",
            "decimal128(5, 2)",
            "bool",
            "date32[day]",
            "timestamp[us]",
            "timestamp[us, tz=UTC]",
        ]
        first, second = table.to_pylist()
        assert [str(value) for value in first.values()] == [
            "007",
            "7",
            "1.5",
            "1.20",
            "True",
            "2026-01-31",
            "2026-01-31 08:30:00.500000",
            "2026-01-31 06:30:00+00:00",
        ]
        assert list(second.values()) == ["008", *[None] * 7]

    @pytest.mark.parametrize(
        ("column", "cell"),
        [
            ("n", b"5.5"),
            ("n", b"0x10"),
            ("n", b"9223372036854775808"),
            ("n", b" 5"),
            ("f", b"1e400"),
            ("f", b"1;5"),
            ("d", b"1.234"),
            ("d", b"1234.5"),
            ("b", b"yes"),
            ("day", b"31.01.2026"),
            ("at", b"2026-01-31T08:30:00Z"),
            ("z", b"2026-01-31 08:30:00"),
        ],
    )
    def test_H6_a_cell_that_is_none_names_its_place_and_not_itself(self, attempt, column, cell):
        data = f"{column}\n".encode() + b"\n" * 4 + cell + b"\n"
        table, message = attempt({"a.csv": data}, types={column: self.TYPES[column]})
        assert table is None
        assert f"a.csv, line 6, column {column!r}: the cell is no " in message
        assert cell.decode() not in message.partition("a.csv")[2]

    def test_a_column_that_is_not_there_is_named(self, attempt):
        _, message = attempt({"a.csv": b"id\n1\n"}, types={"nosuch": "int64"})
        assert (
            "types names the columns 'nosuch', which the source does not have; its columns are 'id'"
            in message
        )

    @pytest.mark.parametrize(
        "types",
        [{}, {"n": "int"}, {"n": 5}, {5: "int64"}, {"n": "decimal(39, 2)"}, {"n": "decimal(2, 3)"}, ["n"]],
    )
    def test_types_that_are_none_are_refused(self, types):
        with pytest.raises(LLMInputError, match="types"):
            SplitOptions(types=types)
