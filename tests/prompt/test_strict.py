from __future__ import annotations

from enum import Enum
from typing import Literal

import pytest
from pydantic import BaseModel, Field

from airflow_llm_provider import CompletionSpec
from airflow_llm_provider.prompt.strict import strict_schema


def closed(**properties):
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


class Level(Enum):
    LOW = "low"
    HIGH = "high"


class Inner(BaseModel):
    name: str = Field(default="x", description="a name")


class Node(BaseModel):
    child: Node | None = Field(default=None, description="next")


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]


class Model(BaseModel):
    level: Level = Field(description="how bad")
    score: int | None = None
    inner: list[Inner] = []
    pet: Cat | Dog = Field(discriminator="kind")
    node: Node


class TestStrictSchema:
    def test_objects_are_closed_and_everything_is_required(self):
        schema = {
            "type": "object",
            "properties": {"a": {"type": "string"}, "b": {"type": "object", "properties": {"c": {}}}},
        }
        assert strict_schema(schema) == (closed(a={"type": "string"}, b=closed(c={})), True)

    def test_the_original_is_left_alone(self):
        schema = {"type": "object", "properties": {"a": {"type": "string", "default": "x"}}}
        strict_schema(schema)
        assert schema == {"type": "object", "properties": {"a": {"type": "string", "default": "x"}}}

    def test_defaults_and_notes_go_const_and_one_of_are_said_otherwise(self):
        schema = {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": {
                "a": {"type": "string", "default": "x", "examples": ["y"]},
                "b": {"const": 1},
                "c": {"oneOf": [{"type": "string"}, {"type": "null"}]},
                "d": {"allOf": [{"type": "object", "properties": {"e": {}}}]},
            },
        }
        assert strict_schema(schema) == (
            closed(
                a={"type": "string"},
                b={"enum": [1]},
                c={"anyOf": [{"type": "string"}, {"type": "null"}]},
                d=closed(e={}),
            ),
            True,
        )

    def test_a_property_may_be_called_like_a_keyword(self):
        schema = {
            "type": "object",
            "properties": {"not": {"type": "string"}, "default": {"type": "string"}, "$ref": {}},
        }
        assert strict_schema(schema) == (
            closed(**{"not": {"type": "string"}, "default": {"type": "string"}, "$ref": {}}),
            True,
        )

    def test_pydantic_models_fit(self):
        schema, strict = strict_schema(
            CompletionSpec(model="m", prompt="p", output_schema=Model).output_schema
        )
        assert strict
        assert schema["required"] == ["level", "score", "inner", "pet", "node"]
        assert schema["properties"]["level"] == {
            "description": "how bad",
            "enum": ["low", "high"],
            "title": "Level",
            "type": "string",
        }
        assert schema["properties"]["node"] == {"$ref": "#/$defs/Node"}
        assert "oneOf" not in str(schema)
        assert "discriminator" not in str(schema)
        assert "'default'" not in str(schema)

    def test_recursion_with_a_description_ends(self):
        schema = {
            "type": "object",
            "properties": {"child": {"$ref": "#", "description": "next"}, "free": {"$ref": "#"}},
        }
        strict, is_strict = strict_schema(schema)
        assert is_strict
        assert strict["properties"]["free"] == {"$ref": "#"}
        assert strict["properties"]["child"]["description"] == "next"
        assert strict["properties"]["child"]["properties"]["child"] == {"$ref": "#"}

    @pytest.mark.parametrize(
        "inner",
        [
            {"type": "object", "additionalProperties": {"type": "integer"}},
            {"type": "object"},
            {"type": "object", "properties": {"a": {}}, "additionalProperties": True},
            {"not": {"type": "string"}},
            {"allOf": [{}, {}]},
            {"allOf": []},
            {"type": "array", "items": True},
            {"type": "array", "prefixItems": [{}]},
            {"$ref": "#/$defs/nowhere"},
            {"$ref": "https://example.org/schema"},
            {"anyOf": [{}], "oneOf": [{}]},
        ],
    )
    def test_what_strict_mode_cannot_say_is_sent_as_it_is(self, inner):
        schema = {"type": "object", "properties": {"a": inner}}
        assert strict_schema(schema) == (schema, False)
