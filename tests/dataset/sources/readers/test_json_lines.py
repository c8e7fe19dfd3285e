import json

import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llm_provider.errors import LLMInputError

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


def lines(*values):
    return "\n".join(json.dumps(value) for value in values).encode()


def rows(table):
    return table.to_pylist()


class TestJsonLines:
    @pytest.mark.parametrize(
        ("values", "kind", "stored"),
        [
            (["a", None], pa.string(), ["a", None]),
            ([True, None, False], pa.bool_(), [True, None, False]),
            ([1, None, -5], pa.int64(), [1, None, -5]),
            ([2**63 - 1, -(2**63)], pa.int64(), [2**63 - 1, -(2**63)]),
            ([9007199254740993, None], pa.int64(), [9007199254740993, None]),
            ([1, 2.5], pa.float64(), [1.0, 2.5]),
            ([None, None], pa.string(), [None, None]),
            ([9007199254740993, 2.5], pa.string(), ["9007199254740993", "2.5"]),
            ([2**63, 1], pa.string(), [str(2**63), "1"]),
            ([2**64 + 1, 1], pa.string(), [str(2**64 + 1), "1"]),
            ([1, "x"], pa.string(), ["1", '"x"']),
            ([True, 1], pa.string(), ["true", "1"]),
            ([{}, [1]], pa.string(), ["{}", "[1]"]),
            ([{"a": [1, 2.0, "é"]}, None], pa.string(), ['{"a":[1,2.0,"é"]}', None]),
            ([[123456789012345678901234567890]], pa.string(), ["[123456789012345678901234567890]"]),
        ],
    )
    def test_G2_H9_a_type_only_when_every_value_has_it(self, read, values, kind, stored):
        table = read({"a.jsonl": lines(*({"v": value} for value in values))})
        assert table.schema.field("v").type == kind
        assert table.column("v").to_pylist() == stored

    def test_H9_types_are_chosen_over_all_files(self, read):
        table = read({"a.jsonl": lines({"v": 1}), "b.ndjson": lines({"v": "x", "w": 1})})
        assert rows(table) == [{"v": "1", "w": None}, {"v": '"x"', "w": 1}]
        assert "'v'" in read.notes[0]

    def test_missing_keys_are_null(self, read):
        assert rows(read({"a.jsonl": lines({"a": 1}, {}, {"b": "x"})})) == [
            {"a": 1, "b": None},
            {"a": None, "b": None},
            {"a": None, "b": "x"},
        ]

    def test_H13_blank_lines_are_no_rows(self, read):
        assert rows(read({"a.jsonl": b'\n{"n":1}\n\n \t\r\n{"n":2}\r\n\n'})) == [{"n": 1}, {"n": 2}]

    def test_H13_a_cut_line_names_file_and_line(self, read):
        with pytest.raises(LLMInputError, match=r"a\.jsonl, line 3 is no whole JSON value .*cut short"):
            read({"a.jsonl": b'{"n":1}\n\n{"n":'})

    @pytest.mark.parametrize("line", [b"[1]", b'"x"', b"1", b"null"])
    def test_other_values_than_objects_are_refused(self, read, line):
        with pytest.raises(LLMInputError, match="line 2 is no JSON object"):
            read({"a.jsonl": b'{"n":1}\n' + line})

    @pytest.mark.parametrize(
        "line",
        [b'{"n":1,"n":2}', b'{"n" : 1, "m":2, "n"\t:3}', b'{"a":{"n":1,"n":1}}', b'{"\\u006e":1,"n":2}'],
    )
    def test_a_repeated_key_is_refused_by_name(self, read, line):
        with pytest.raises(LLMInputError, match="line 1 has the key 'n' twice"):
            read({"a.jsonl": line})

    def test_texts_that_look_like_keys_are_none(self, read):
        assert rows(read({"a.jsonl": lines({"n": 'a": b":'}, {"n": "x"})}))[0] == {"n": 'a": b":'}

    def test_D4_halves_of_surrogates_are_replaced_and_counted(self, read):
        table = read({"a.jsonl": b'{"id":1,"text":"ok \\ud83d end"}\n{"id":2,"text":"\\ud83d\\ude00"}\n'})
        assert table.column("text").to_pylist() == ["ok \ufffd end", "\U0001f600"]
        assert read.notes == ["1 halves of surrogate pairs became U+FFFD: no UTF-8 text can hold them"]

    def test_D4_inside_nested_values_too(self, read):
        assert rows(read({"a.jsonl": b'{"a\\udc00":["\\ud83d"]}'})) == [{"a\ufffd": '["\ufffd"]'}]

    def test_nan_is_a_float(self, read):
        table = read({"a.jsonl": b'{"v":NaN}\n{"v":1.5}\n{"v":-Infinity}'})
        assert str(table.column("v").to_pylist()) == "[nan, 1.5, -inf]"

    @pytest.mark.parametrize("number", ["1e400", "-1e999", "[1e400]"])
    def test_a_number_that_no_float_holds_is_refused(self, read, number):
        with pytest.raises(LLMInputError, match=r"line 2 has a number beyond the range of floats"):
            read({"a.jsonl": f'{{"n":1.5}}\n{{"n":{number}}}\n'.encode()})

    def test_an_integer_of_more_digits_than_python_reads_is_refused(self, read):
        with pytest.raises(LLMInputError, match=r"line 1 has an integer of more than 4300 digits: write it"):
            read({"a.jsonl": b'{"n":' + b"9" * 5000 + b"}\n"})

    def test_D4_keys_that_become_one_are_refused(self, read):
        with pytest.raises(
            LLMInputError, match="line 1 has keys that differ in halves of surrogate pairs only"
        ):
            read({"a.jsonl": rb'{"\ud800":1,"\udfff":2}'})

    @pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
    def test_H1_byte_order_marks_are_known(self, read, encoding):
        assert rows(read({"a.jsonl": '{"n":"é"}\n{"n":"ü"}\n'.encode(encoding)})) == [{"n": "é"}, {"n": "ü"}]

    def test_H2_other_encodings_name_line_byte_and_remedy(self, read):
        data = '{"n":"1"}\n{"n":"café"}\n'.encode("latin-1")
        with pytest.raises(LLMInputError, match=r"line 2, byte 19 is 0xe9, which is not utf-8: .*encoding="):
            read({"a.jsonl": data})
        assert rows(read({"a.jsonl": data}, encoding="latin-1"))[1] == {"n": "café"}
        with pytest.raises(LLMInputError, match=r"byte 19 is 0xe9, which is not ascii"):
            read({"a.jsonl": data}, encoding="ascii")

    def test_deep_nesting_is_an_error_not_a_crash(self, read):
        deep = b'{"v":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
        with pytest.raises(LLMInputError, match="line 1"):
            read({"a.jsonl": deep})

    @pytest.mark.parametrize("depth", [300, 900, 1000, 1020])
    @pytest.mark.parametrize(("opened", "closed"), [(b"[", b"]"), (b'{"v":', b"}")])
    @pytest.mark.parametrize("text", [b"x", b'\\"k\\": v'])
    def test_nesting_that_one_parser_takes_and_another_does_not_is_no_crash(
        self, attempt, depth, opened, closed, text
    ):
        line = b'{"t":"%b","v":%b1%b}' % (text, opened * depth, closed * depth)
        table, message = attempt({"a.jsonl": line})
        assert table.num_rows == 1 if message is None else "nested too deeply" in message

    def test_keys_without_end_are_no_columns(self, read):
        with pytest.raises(LLMInputError, match="more than 10,000 different keys"):
            read({"a.jsonl": lines(*({f"k{n}": 1} for n in range(10_002)))})

    def test_rows_without_any_key_are_refused(self, read):
        with pytest.raises(LLMInputError, match="line 2: no object has any key"):
            read({"a.jsonl": b"{}\n{}\n"}, columns_if_empty=["q"])

    def test_A2_an_empty_file_is_no_rows(self, read):
        assert read({"a.jsonl": b"\n"}, columns_if_empty=["q"]).schema == pa.schema([("q", pa.string())])

    def test_lines_end_at_newlines_only(self, read):
        data = '{"t":"a\u2028b\u0085c"}\n{"t":"d"}\n'
        assert rows(read({"a.jsonl": data.encode()})) == [{"t": "a\u2028b\u0085c"}, {"t": "d"}]
        assert rows(read({"a.jsonl": data.encode("utf-16")})) == [{"t": "a\u2028b\u0085c"}, {"t": "d"}]

    @settings(max_examples=80)
    @given(values=st.lists(st.dictionaries(st.sampled_from("abc"), JSON, max_size=3), max_size=6))
    def test_no_value_changes(self, read, values):
        values = [*values, {"a": None}]
        table = read({"a.jsonl": lines(*values)})
        for row, value in zip(rows(table), values, strict=True):
            for key, stored in row.items():
                whole = table.schema.field(key).type != pa.string() or all(
                    isinstance(other.get(key), str | None) for other in values
                )
                found = stored if whole or stored is None else json.loads(stored)
                assert found == value.get(key)
                assert isinstance(found, bool) == isinstance(value.get(key), bool)

    @settings(max_examples=150)
    @given(
        data=st.lists(
            st.sampled_from(
                [
                    b'{"a":1}',
                    b'{"a":"',
                    b'"}',
                    b"\n",
                    b"{",
                    b"}",
                    b"\xff",
                    b"\\ud800",
                    b"x",
                    b" ",
                    b"[]",
                    b",",
                ]
            ),
            max_size=12,
        )
    )
    def test_broken_bytes_are_right_rows_or_an_error_with_a_place(self, attempt, data):
        raw = b"".join(data)
        table, message = attempt({"a.jsonl": raw}, columns_if_empty=["a"])
        if table is None:
            assert "a.jsonl, line" in message
            return
        lines = [line.replace(b"\\ud800", b"\\ufffd") for line in raw.split(b"\n") if line.strip()]
        expected = [json.loads(line) for line in lines]
        assert table.num_rows == len(expected)
        for row, value in zip(rows(table), expected, strict=True):
            assert row["a"] == value["a"] or orjson.loads(row["a"]) == value["a"]
