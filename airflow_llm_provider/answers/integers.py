"""Integers of an answer as columns hold them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_INT64 = range(-(2**63), 2**63)
_DEEPEST_REFERENCE = 16


class OutOfRangeError(ValueError):
    """An integer that no 64-bit column holds."""


def with_integers(value: dict[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Keep the schema's properties, in its order, and turn ``1.0`` into ``1`` where it wants integers.

    JSON Schema counts ``1.0`` as an integer, and a column of integers does not.

    :param value: an object that is valid under the schema.
    :raises OutOfRangeError: when an integer exceeds 64 bits.
    """
    return {
        name: _fit(value[name], sub, root=schema)
        for name, sub in schema.get("properties", {}).items()
        if name in value
    }


def _fit(value: Any, schema: Any, *, root: Mapping[str, Any]) -> Any:
    if isinstance(value, (str, bool)) or value is None:
        return value
    options = list(_options(schema, root, depth=0))
    if isinstance(value, (int, float)):
        return _fit_number(value, {kind for option in options for kind in _types(option)})
    if isinstance(value, list):
        items = next((option["items"] for option in options if "items" in option), None)
        return [_fit(item, items, root=root) for item in value]
    properties: dict[str, Any] = {}
    for option in options:
        if isinstance(option.get("properties"), Mapping):
            properties = {**option["properties"], **properties}
    return {name: _fit(item, properties.get(name), root=root) for name, item in value.items()}


def _fit_number(value: float, types: set[Any]) -> float:
    if "integer" not in types or "number" in types:
        return value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and value not in _INT64:
        raise OutOfRangeError
    return value


def _types(option: Mapping[str, Any]) -> list[Any]:
    kind = option.get("type")
    return kind if isinstance(kind, list) else [kind]


def _options(schema: Any, root: Mapping[str, Any], *, depth: int) -> Iterator[Mapping[str, Any]]:
    """Yield the plain schemas that a schema stands for."""
    if not isinstance(schema, Mapping) or depth > _DEEPEST_REFERENCE:
        return
    yield schema
    pointer = schema.get("$ref")
    if isinstance(pointer, str) and pointer.startswith("#"):
        yield from _options(_resolve(pointer, root), root, depth=depth + 1)
    for keyword in ("anyOf", "oneOf", "allOf"):
        for sub in schema.get(keyword) or ():
            yield from _options(sub, root, depth=depth + 1)


def _resolve(pointer: str, root: Mapping[str, Any]) -> Any:
    target: Any = root
    for step in pointer.removeprefix("#").split("/")[1:]:
        target = (
            target.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(target, Mapping) else None
        )
    return target
