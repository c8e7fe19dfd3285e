"""A JSON Schema in the form that strict structured output takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Keywords that strict mode does not know and that cannot be said in another way.
_INEXPRESSIBLE = frozenset(
    {
        *(
            "not",
            "if",
            "then",
            "else",
            "dependentRequired",
            "dependentSchemas",
            "patternProperties",
            "propertyNames",
        ),
        *(
            "unevaluatedItems",
            "unevaluatedProperties",
            "prefixItems",
            "contains",
            "minContains",
            "maxContains",
        ),
        *("minProperties", "maxProperties", "uniqueItems", "$dynamicRef", "$anchor"),
    }
)
#: Keywords that only inform: strict mode refuses them, leaving them out changes no answer.
_DROPPED = frozenset({"default", "discriminator", "examples", "$schema", "$id", "$comment"})
_SUBSCHEMAS = frozenset({"properties", "$defs", "definitions"})


class _NotStrictError(Exception):
    """The schema says what strict mode cannot say."""


def strict_schema(schema: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """Make every object closed and every property required, as strict mode demands.

    :param schema: JSON Schema of an object.
    :return: the strict schema and ``True``, or the schema as it is and ``False`` where strict mode cannot say it
        (objects with free keys, ``not``, ``if``). Answers are validated against the original either way, which
        accepts all that the strict one accepts, a little more in the case of ``oneOf``.
    """
    try:
        return _strict(schema, root=schema, inside=()), True
    except _NotStrictError:
        return dict(schema), False


def _strict(schema: Any, *, root: Mapping[str, Any], inside: tuple[str, ...]) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    if "$ref" in schema:
        return _reference(schema, root=root, inside=inside)
    _check(schema)
    result: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword not in _DROPPED:
            result.update(_keyword(keyword, value, root=root, inside=inside))
    if "properties" in result or result.get("type") == "object":
        result["required"] = list(result.setdefault("properties", {}))
        result["additionalProperties"] = False
    return result


def _keyword(keyword: str, value: Any, *, root: Mapping[str, Any], inside: tuple[str, ...]) -> dict[str, Any]:
    if keyword in _SUBSCHEMAS and isinstance(value, Mapping):
        return {keyword: {name: _strict(sub, root=root, inside=inside) for name, sub in value.items()}}
    if keyword == "items":
        return {keyword: _strict(value, root=root, inside=inside)}
    if keyword in ("anyOf", "oneOf") and isinstance(value, list):
        # Strict mode knows no oneOf; anyOf allows the same answers and a few more.
        return {"anyOf": [_strict(sub, root=root, inside=inside) for sub in value]}
    if keyword == "allOf":
        return dict(_strict(value[0], root=root, inside=inside))
    return {"enum": [value]} if keyword == "const" else {keyword: value}


def _check(schema: Mapping[str, Any]) -> None:
    if _INEXPRESSIBLE & schema.keys() or not isinstance(schema.get("type", ""), (str, list)):
        raise _NotStrictError
    if schema.get("additionalProperties", False) is not False:
        raise _NotStrictError
    if schema.get("type") == "object" and not schema.get("properties"):
        raise _NotStrictError  # an object with any keys
    if "allOf" in schema and (not isinstance(schema["allOf"], list) or len(schema["allOf"]) != 1):
        raise _NotStrictError
    if isinstance(schema.get("items"), (bool, list)):
        raise _NotStrictError
    if "anyOf" in schema and "oneOf" in schema:
        raise _NotStrictError


def _reference(schema: Mapping[str, Any], *, root: Mapping[str, Any], inside: tuple[str, ...]) -> Any:
    """Keep a bare reference; put the target in place of one with company, which strict mode refuses."""
    pointer = schema["$ref"]
    target = _resolve(pointer, root)
    company = {key: value for key, value in schema.items() if key != "$ref" and key not in _DROPPED}
    if not company or pointer in inside:
        return {"$ref": pointer}
    return _strict({**target, **company}, root=root, inside=(*inside, pointer))


def _resolve(pointer: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(pointer, str) or not pointer.startswith("#"):
        raise _NotStrictError
    target: Any = root
    for step in pointer.removeprefix("#").split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(target, Mapping) or key not in target:
            raise _NotStrictError
        target = target[key]
    if not isinstance(target, Mapping):
        raise _NotStrictError
    return target
