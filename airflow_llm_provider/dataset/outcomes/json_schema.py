"""From a JSON Schema to an Arrow type, with the conversion of a value into it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from airflow_llm_provider.dataset.arrow.text import clean, json_text

_INT64_BOUND = 1 << 63
#: Deeper types are written as JSON text: few readers of Parquet take more.
_DEEPEST = 16
_SCALARS = {
    "string": pa.string(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
}


class MisfitError(ValueError):
    """A value that does not fit its column. The message holds no value."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How one part of an answer is stored.

    :param type: its Arrow type.
    :param convert: turns a JSON value into what Arrow takes; raises :class:`MisfitError` for one that does not fit.
    :param scalar: whether it is a plain string, number or boolean.
    """

    type: pa.DataType
    convert: Callable[[Any], Any]
    scalar: bool = False


class _RecursionFoundError(Exception):
    def __init__(self, ref: str) -> None:
        super().__init__(ref)
        self.ref = ref


def shape_of(schema: Any, root: Mapping[str, Any]) -> Shape:
    """Choose the storage of a value.

    Types that Arrow cannot hold (unions of different types, free objects, types that contain themselves) become the
    JSON text of the value. Dates and times stay the strings that the model wrote.

    :param schema: the value's JSON Schema.
    :param root: the schema that ``$ref`` points into.
    """
    return _Shaper(root).shape(schema, ())


class _Shaper:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root

    def shape(self, schema: Any, path: tuple[str, ...]) -> Shape:
        if not isinstance(schema, Mapping) or len(path) > _DEEPEST:
            return JSON_TEXT
        if "$ref" in schema:
            return self._reference(str(schema["$ref"]), path)
        for keyword in ("anyOf", "oneOf", "allOf"):
            if isinstance(schema.get(keyword), list):
                return (
                    self._one_of(schema[keyword], path) if keyword != "allOf" else self._all_of(schema, path)
                )
        if "const" in schema:
            return _shape_of_values([schema["const"]])
        if isinstance(schema.get("enum"), list):
            return _shape_of_values(schema["enum"])
        return self._typed(schema, path)

    def _reference(self, ref: str, path: tuple[str, ...]) -> Shape:
        if ref in path:
            raise _RecursionFoundError(ref)
        target: Any = self._root
        for step in ref.removeprefix("#").strip("/").split("/") if ref != "#" else []:
            key = step.replace("~1", "/").replace("~0", "~")
            target = target.get(key) if isinstance(target, Mapping) else None
        try:
            return self.shape(target, (*path, ref))
        except _RecursionFoundError as found:
            if found.ref != ref:
                raise
            return JSON_TEXT

    def _one_of(self, options: list[Any], path: tuple[str, ...]) -> Shape:
        shapes = [self.shape(option, (*path, "")) for option in options if not _is_null(option)]
        if len(shapes) == 1:
            return shapes[0]
        types = {shape.type if shape.scalar else None for shape in shapes}
        if len(types) == 1 and shapes[0].scalar:
            return shapes[0]
        return _scalar("number") if types == {pa.int64(), pa.float64()} else JSON_TEXT

    def _all_of(self, schema: Mapping[str, Any], path: tuple[str, ...]) -> Shape:
        options = schema["allOf"]
        return self.shape(options[0], (*path, "")) if len(options) == 1 else JSON_TEXT

    def _typed(self, schema: Mapping[str, Any], path: tuple[str, ...]) -> Shape:
        kind = schema.get(
            "type", "object" if "properties" in schema else "array" if "items" in schema else None
        )
        kinds = {k for k in (kind if isinstance(kind, list) else [kind]) if k != "null"}
        if kinds == {"integer", "number"}:
            kinds = {"number"}
        if len(kinds) != 1:
            return JSON_TEXT
        only = kinds.pop()
        if only in _SCALARS:
            return _scalar(only)
        if only == "array" and isinstance(schema.get("items"), Mapping) and "prefixItems" not in schema:
            return _list(self.shape(schema["items"], (*path, "")))
        if only == "object" and schema.get("properties") and not _is_open(schema):
            return _struct({name: self.shape(s, (*path, "")) for name, s in schema["properties"].items()})
        return JSON_TEXT


def _is_null(schema: Any) -> bool:
    return isinstance(schema, Mapping) and (
        schema.get("type") == "null"
        or schema.get("enum") == [None]
        or ("const" in schema and schema["const"] is None)
    )


def _is_open(schema: Mapping[str, Any]) -> bool:
    """Tell whether an object may have properties that a struct would lose."""
    return bool(schema.get("additionalProperties")) or "patternProperties" in schema


def _shape_of_values(values: list[Any]) -> Shape:
    kinds = {type(value) for value in values if value is not None}
    for kind, name in ((str, "string"), (bool, "boolean"), (int, "integer")):
        if kinds == {kind}:
            return _scalar(name)
    return _scalar("number") if kinds and kinds <= {int, float} else JSON_TEXT


def _scalar(name: str) -> Shape:
    return Shape(type=_SCALARS[name], convert=_CONVERTERS[name], scalar=True)


def _list(item: Shape) -> Shape:
    def convert(value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, list):
            raise MisfitError(f"a {type(value).__name__} where an array belongs")
        return [item.convert(part) for part in value]

    return Shape(type=pa.list_(item.type), convert=convert)


def _struct(parts: Mapping[str, Shape]) -> Shape:
    def convert(value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise MisfitError(f"a {type(value).__name__} where an object belongs")
        return {name: part.convert(value.get(name)) for name, part in parts.items()}

    return Shape(type=pa.struct([pa.field(name, part.type) for name, part in parts.items()]), convert=convert)


def _string(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise MisfitError(f"a {type(value).__name__} where a string belongs")
    return clean(value)


def _integer(value: Any) -> int | None:
    if value is None:
        return None
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole and not (isinstance(value, float) and value.is_integer()):
        raise MisfitError(f"a {type(value).__name__} where an integer belongs")
    if not -_INT64_BOUND <= int(value) < _INT64_BOUND:
        raise MisfitError("an integer beyond 64 bits")
    return int(value)


def _number(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise MisfitError(f"a {type(value).__name__} where a number belongs")
    try:
        return float(value)
    except OverflowError as error:
        raise MisfitError("a number beyond 64 bits") from error


def _boolean(value: Any) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise MisfitError(f"a {type(value).__name__} where a boolean belongs")
    return value


_CONVERTERS: dict[str, Callable[[Any], Any]] = {
    "string": _string,
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
}
#: The JSON text of the value, whatever it is.
JSON_TEXT = Shape(type=pa.string(), convert=lambda value: None if value is None else json_text(value))
#: A plain string.
TEXT = _scalar("string")
