import datetime as dt
import enum
from typing import Any, Literal

import orjson
import pyarrow as pa
import pytest
from pydantic import BaseModel

from airflow_llm_provider.dataset.outcomes.columns import METADATA, OutputColumns
from airflow_llm_provider.dataset.outcomes.json_schema import JSON_TEXT, MisfitError, shape_of
from airflow_llm_provider.errors import LLMInputError
from airflow_llm_provider.spec import CompletionSpec


def spec(**changes):
    return CompletionSpec(**{"model": "m", "prompt": "{{ x }}", **changes})


class Mood(enum.Enum):
    GOOD = "good"
    BAD = "bad"


class Tree(BaseModel):
    value: int
    children: list["Tree"] = []


class Point(BaseModel):
    x: float
    y: float | None = None


class Everything(BaseModel):
    text: str
    maybe: int | None
    ratio: float
    yes: bool
    mood: Mood
    level: Literal[1, 2, 3]
    tags: list[str]
    point: Point
    points: list[Point] | None
    tree: Tree
    free: dict[str, int]
    either: int | str
    number: int | float | None
    when: dt.datetime
    anything: Any
    pair: tuple[int, str]


class TestOutputColumns:
    def test_plain_text_is_one_string_column(self):
        assert OutputColumns(spec(output_column="words")).answer == (pa.field("words", pa.string()),)

    def test_a_pydantic_model_becomes_typed_columns(self):
        point = pa.struct([("x", pa.float64()), ("y", pa.float64())])
        kinds = {field.name: field.type for field in OutputColumns(spec(output_schema=Everything)).answer}
        assert kinds == {
            "text": pa.string(),
            "maybe": pa.int64(),
            "ratio": pa.float64(),
            "yes": pa.bool_(),
            "mood": pa.string(),
            "level": pa.int64(),
            "tags": pa.list_(pa.string()),
            "point": point,
            "points": pa.list_(point),
            "tree": pa.string(),
            "free": pa.string(),
            "either": pa.string(),
            "number": pa.float64(),
            "when": pa.string(),
            "anything": pa.string(),
            "pair": pa.string(),
        }

    def test_what_arrow_cannot_hold_is_kept_as_json_text(self):
        columns = OutputColumns(spec(output_schema=Everything))
        answer = {
            "text": "t", "maybe": None, "ratio": 1, "yes": True, "mood": "good", "level": 2, "tags": ["a"],
            "point": {"x": 1.5}, "points": None, "tree": {"value": 1, "children": [{"value": 2}]},
            "free": {"a": 1}, "either": "3", "number": 4, "when": "2026-01-01T00:00:00Z", "anything": 2**70,
            "pair": [1, "b"],
        }  # fmt: skip
        values = dict(zip([field.name for field in columns.answer], columns.convert(answer), strict=True))
        assert values["point"] == {"x": 1.5, "y": None}
        assert orjson.loads(values["tree"]) == answer["tree"]
        assert values["free"] == '{"a":1}'
        assert values["either"] == '"3"'
        assert values["number"] == 4.0
        assert values["anything"] == str(2**70)
        assert values["pair"] == '[1,"b"]'
        arrays = [
            pa.array([value], field.type)
            for value, field in zip(values.values(), columns.answer, strict=True)
        ]
        assert pa.record_batch(arrays, schema=pa.schema(columns.answer)).num_rows == 1

    def test_every_added_column_may_be_null(self):
        columns = OutputColumns(spec(output_schema=Everything))
        assert all(field.nullable for field in (*columns.answer, *columns.metadata))

    def test_input_columns_come_first_and_untouched(self):
        schema = pa.schema([pa.field("x", pa.decimal128(9, 2), nullable=False, metadata={"k": "v"})])
        output = OutputColumns(spec(metadata_prefix="m_")).output_schema(schema)
        assert output.field(0).equals(schema.field(0), check_metadata=True)
        assert output.names == ["x", "answer", *(f"m_{name}" for name, _ in METADATA)]

    def test_a_missing_property_is_null(self):
        columns = OutputColumns(
            spec(output_schema={"type": "object", "properties": {"a": {"type": "string"}}})
        )
        assert columns.convert({}) == (None,)
        with pytest.raises(MisfitError, match="a list where an object belongs"):
            columns.convert([])

    @pytest.mark.parametrize(
        ("changes", "input_columns", "message"),
        [
            ({}, ["answer"], r"'answer'.*output_column="),
            ({}, ["ANSWER"], r"'ANSWER'.*output_column="),
            ({}, ["llm_status"], r"'llm_status'.*metadata_prefix="),
            ({}, ["LLM_Text"], r"'LLM_Text'.*metadata_prefix="),
            ({}, ["_llm_row"], r"'_llm_row'.*rename them"),
            ({"metadata_prefix": "_llm_"}, [], r"metadata_prefix is '_llm_'"),
            ({"output_column": "llm_status"}, [], r"'llm_status'.*output_column="),
            ({"output_column": "_llm_x"}, [], r"'_llm_x'"),
            (
                {"output_schema": {"type": "object", "properties": {"llm_model": {"type": "string"}}}},
                [],
                r"'llm_model'.*property names",
            ),
            (
                {"output_schema": {"type": "object", "properties": {"Label": {}, "x": {}, "label": {}}}},
                [],
                r"'Label', 'label' differ in case only",
            ),
        ],
    )
    def test_two_columns_never_share_a_name(self, changes, input_columns, message):
        schema = pa.schema([(name, pa.string()) for name in input_columns])
        with pytest.raises(LLMInputError, match=message):
            OutputColumns(spec(**changes)).check(schema)

    def test_other_names_pass(self):
        OutputColumns(spec()).check(
            pa.schema([("text", pa.string()), ("llm_other", pa.string()), ("", pa.string())])
        )


class TestShapeOf:
    @pytest.mark.parametrize(
        ("schema", "kind"),
        [
            ({"type": ["string", "null"]}, pa.string()),
            ({"type": ["integer", "number"]}, pa.float64()),
            ({"type": ["string", "integer"]}, JSON_TEXT.type),
            ({"enum": ["a", None]}, pa.string()),
            ({"enum": [1, 2.5]}, pa.float64()),
            ({"enum": [True, False]}, pa.bool_()),
            ({"const": "x"}, pa.string()),
            ({"anyOf": [{"type": "boolean"}, {"type": "null"}]}, pa.bool_()),
            ({"oneOf": [{"const": "a"}, {"const": "b"}]}, pa.string()),
            ({"allOf": [{"type": "integer"}]}, pa.int64()),
            ({"allOf": [{"type": "integer"}, {"minimum": 1}]}, pa.string()),
            ({"properties": {"a": {"type": "integer"}}}, pa.struct([("a", pa.int64())])),
            ({"items": {"type": "integer"}}, pa.list_(pa.int64())),
            ({"type": "array"}, pa.string()),
            ({"type": "object"}, pa.string()),
            (
                {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": True},
                pa.string(),
            ),
            (
                {"type": "object", "properties": {"a": True}, "additionalProperties": False},
                pa.struct([("a", pa.string())]),
            ),
            ({"$ref": "#/nowhere"}, pa.string()),
            ({"type": "null"}, pa.string()),
            (True, pa.string()),
            ({}, pa.string()),
        ],
    )
    def test_chooses_the_narrowest_type_that_holds_all(self, schema, kind):
        assert shape_of(schema, {}).type == kind

    def test_types_that_hold_each_other_end(self):
        root = {"$defs": {
            "a": {"type": "object", "properties": {"b": {"$ref": "#/$defs/b"}}},
            "b": {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}, "n": {"type": "integer"}}},
        }}  # fmt: skip
        assert shape_of({"$ref": "#/$defs/a"}, root).type == pa.string()

    def test_a_type_that_is_used_twice_is_no_recursion(self):
        root = {"$defs": {"p": {"type": "object", "properties": {"x": {"type": "integer"}}}}}
        schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/p"}, "b": {"$ref": "#/$defs/p"}}}
        inner = pa.struct([("x", pa.int64())])
        assert shape_of(schema, root).type == pa.struct([("a", inner), ("b", inner)])

    def test_very_deep_types_are_json_text(self):
        schema = {"type": "integer"}
        for _ in range(100):
            schema = {"type": "array", "items": schema}
        shape = shape_of(schema, {})
        assert str(shape.type).count("list") < 20
        assert shape.convert([[]]) == [[]]

    @pytest.mark.parametrize(
        ("schema", "value"),
        [
            ("integer", 2**63), ("integer", True), ("integer", 1.5), ("number", "1"), ("number", 10**400),
            ("string", 5), ("boolean", 1), ("array", {}), ("object", []),
        ],
    )  # fmt: skip
    def test_what_does_not_fit_says_so_without_the_value(self, schema, value):
        extra = {"items": {"type": "string"}, "properties": {"a": {"type": "string"}}}
        with pytest.raises(MisfitError) as caught:
            shape_of({"type": schema, **extra}, {}).convert(value)
        assert str(value) not in str(caught.value)

    def test_whole_floats_are_integers_as_json_schema_says(self):
        assert shape_of({"type": "integer"}, {}).convert(3.0) == 3

    def test_D4_halves_of_surrogates_are_replaced(self):
        assert shape_of({"type": "string"}, {}).convert("a\ud83d") == "a\ufffd"
        assert JSON_TEXT.convert(["a\ud83d"]) == '["a\ufffd"]'
