"""From an Avro schema to Arrow types, and from what fastavro makes of a value to what Arrow takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from airflow_llm_provider.dataset.arrow.text import json_text
from airflow_llm_provider.errors import LLMInputError

Convert: TypeAlias = Callable[[Any], Any]
_PRIMITIVES = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "timestamp-nanos"): pa.timestamp("ns", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("long", "local-timestamp-nanos"): pa.timestamp("ns"),
    ("string", "uuid"): pa.string(),
}
_DECIMAL128_DIGITS, _DECIMAL256_DIGITS = 38, 76


@dataclass(frozen=True, slots=True)
class Shape:
    """What a part of an Avro schema becomes.

    :param type: type of the column.
    :param convert: makes Arrow's value of fastavro's; ``None``: it is the same.
    :param nullable: whether a value may be missing.
    :param mixed: whether it holds values of several types, each as its JSON text.
    """

    type: pa.DataType
    convert: Convert | None = None
    nullable: bool = False
    mixed: bool = False


def shape_of(schema: Any, names: Mapping[str, Any], above: frozenset[str] = frozenset()) -> Shape:
    """Return what a part of a schema becomes.

    :param names: the schemas that have names.
    :param above: names of the records that this part lies in.
    :raises LLMInputError: when a record holds itself, which no column can.
    """
    if isinstance(schema, list):
        return _union(schema, names, above)
    if isinstance(schema, str):
        return _named(schema, names, above)
    kind = schema["type"] if isinstance(schema["type"], str) else ""
    make = {"record": _record, "array": _array, "map": _map}.get(kind, _scalar)
    return make(schema, names, above)


def _named(name: str, names: Mapping[str, Any], above: frozenset[str]) -> Shape:
    if name in _PRIMITIVES:
        return Shape(_PRIMITIVES[name])
    if name in above:
        raise LLMInputError(f"the Avro record {name!r} holds itself, which no column can")
    return shape_of(names[name], names, above)


def _scalar(schema: Mapping[str, Any], names: Mapping[str, Any], above: frozenset[str]) -> Shape:
    kind, logical = schema["type"], schema.get("logicalType", "")
    if isinstance(kind, str) and (kind, logical) in _LOGICAL:
        return Shape(_LOGICAL[kind, logical], str if logical == "uuid" else None)
    if logical == "decimal" and kind in ("bytes", "fixed"):
        return _decimal(schema)
    if kind == "fixed":
        return Shape(pa.binary(schema["size"]))
    return Shape(pa.string()) if kind == "enum" else shape_of(kind, names, above)


def _decimal(schema: Mapping[str, Any]) -> Shape:
    precision, scale = schema["precision"], schema.get("scale", 0)
    if precision <= _DECIMAL128_DIGITS:
        return Shape(pa.decimal128(precision, scale))
    if precision <= _DECIMAL256_DIGITS:
        return Shape(pa.decimal256(precision, scale))
    raise LLMInputError(f"an Avro decimal has {precision} digits, and a column at most {_DECIMAL256_DIGITS}")


def _union(schemas: list[Any], names: Mapping[str, Any], above: frozenset[str]) -> Shape:
    others = [schema for schema in schemas if schema != "null"]
    if len(others) != 1:
        return Shape(
            pa.string(), json_text if others else None, nullable="null" in schemas, mixed=bool(others)
        )
    shape = shape_of(others[0], names, above)
    return Shape(shape.type, shape.convert, nullable=shape.nullable or "null" in schemas, mixed=shape.mixed)


def _record(schema: Mapping[str, Any], names: Mapping[str, Any], above: frozenset[str]) -> Shape:
    inside = above | {schema["name"]}
    shapes = {field["name"]: shape_of(field["type"], names, inside) for field in schema["fields"]}
    fields = [pa.field(name, shape.type, shape.nullable) for name, shape in shapes.items()]
    converters = {
        name: optional(shape.convert) for name, shape in shapes.items() if shape.convert is not None
    }

    def convert(value: Mapping[str, Any]) -> dict[str, Any]:
        return {**value, **{name: make(value[name]) for name, make in converters.items()}}

    return Shape(
        pa.struct(fields),
        convert if converters else None,
        mixed=any(shape.mixed for shape in shapes.values()),
    )


def _array(schema: Mapping[str, Any], names: Mapping[str, Any], above: frozenset[str]) -> Shape:
    items = shape_of(schema["items"], names, above)
    make = items.convert
    kind = pa.list_(pa.field("item", items.type, items.nullable))
    if make is None:
        return Shape(kind)
    each = optional(make)
    return Shape(kind, lambda values: [each(value) for value in values], mixed=items.mixed)


def _map(schema: Mapping[str, Any], names: Mapping[str, Any], above: frozenset[str]) -> Shape:
    values = shape_of(schema["values"], names, above)
    make = optional(values.convert)
    kind = pa.map_(pa.string(), pa.field("value", values.type, values.nullable))
    return Shape(kind, lambda pairs: [(key, make(value)) for key, value in pairs.items()], mixed=values.mixed)


def optional(convert: Convert | None) -> Convert:
    """Let nulls through."""
    if convert is None:
        return lambda value: value
    return lambda value: None if value is None else convert(value)
