"""Answers nobody scripted: derived from the prompt, the same every time, valid under the schema asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

_ECHO_CHARACTERS = 500
_MOST_DEPTH = 12
#: Instances of the string formats that validators check.
_FORMATS = {
    "date": "2024-02-29",
    "date-time": "2024-02-29T12:00:00Z",
    "time": "12:00:00Z",
    "duration": "P1D",
    "email": "someone@example.org",
    "uri": "https://example.org/",
    "uuid": "123e4567-e89b-42d3-a456-426614174000",
    "hostname": "example.org",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
}


def prompt_text(messages: Any) -> str:
    """Return the text of all messages, one a line."""
    return "\n".join(_content_text(message) for message in messages) if isinstance(messages, list) else ""


def _content_text(message: Any) -> str:
    content = message.get("content") if isinstance(message, Mapping) else None
    if isinstance(content, list):  # content as a list of parts
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return content if isinstance(content, str) else ""


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()


#: How a plain-text answer is made from the last message.
TEXT_ANSWERS: dict[str, Callable[[str], str]] = {
    "echo": lambda text: f"echo: {text[:_ECHO_CHARACTERS]}",
    "upper": lambda text: text[:_ECHO_CHARACTERS].upper(),
    "hash": _digest,
    "ok": lambda _: "ok",
}


def default_answer(body: Mapping[str, Any], mode: str) -> str:
    """Answer a request body.

    :param mode: a key of :data:`TEXT_ANSWERS`, for requests without a ``json_schema``.
    """
    messages = body.get("messages")
    text = _content_text(messages[-1]) if isinstance(messages, list) and messages else ""
    wanted = body.get("response_format")
    described = wanted.get("json_schema") if isinstance(wanted, Mapping) else None
    if isinstance(described, Mapping) and isinstance(described.get("schema"), Mapping):
        return orjson.dumps(instance(described["schema"], seed=text)).decode()
    return TEXT_ANSWERS[mode](text)


def instance(schema: Mapping[str, Any], *, seed: str) -> Any:
    """Make a valid instance of a JSON Schema, always the same one for a seed."""
    return _instance(schema, root=schema, seed=int(_digest(seed), 16), depth=0)


def _instance(schema: Any, *, root: Mapping[str, Any], seed: int, depth: int) -> Any:
    if not isinstance(schema, Mapping):
        return "any"
    if "$ref" in schema:
        return _instance(_resolve(schema["$ref"], root), root=root, seed=seed, depth=depth + 1)
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][seed % len(schema["enum"])]
    for keyword in ("anyOf", "oneOf", "allOf"):
        if schema.get(keyword):
            # Deep inside a recursive schema the last way out is the shortest: usually null.
            choice = schema[keyword][-1] if depth > _MOST_DEPTH // 2 else schema[keyword][0]
            return _instance(choice, root=root, seed=seed, depth=depth + 1)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    kind = kind[0] if isinstance(kind, list) else kind
    return _by_type(kind)(schema, root=root, seed=seed, depth=depth + 1)


def _object(schema: Mapping[str, Any], *, root: Mapping[str, Any], seed: int, depth: int) -> dict[str, Any]:
    properties: Mapping[str, Any] = schema.get("properties", {})
    required: Sequence[str] = schema.get("required", ())
    wanted = [name for name in properties if depth <= _MOST_DEPTH // 2 or name in required]
    return {
        name: _instance(properties[name], root=root, seed=seed + n, depth=depth)
        for n, name in enumerate(wanted)
    }


def _array(schema: Mapping[str, Any], *, root: Mapping[str, Any], seed: int, depth: int) -> list[Any]:
    if depth > _MOST_DEPTH:
        return []
    length = max(schema.get("minItems", 0), min(1 + seed % 2, schema.get("maxItems", 2)))
    return [_instance(schema.get("items"), root=root, seed=seed + n, depth=depth) for n in range(length)]


def _number(schema: Mapping[str, Any], *, seed: int, **_: Any) -> Any:
    whole = schema.get("type") == "integer"
    step = schema.get("multipleOf", 1 if whole else 0.5)
    low = schema.get(
        "minimum", schema.get("exclusiveMinimum", -step) + step if "exclusiveMinimum" in schema else 0
    )
    high = schema.get("maximum", low + 10 * step)
    if "exclusiveMaximum" in schema:
        high = schema["exclusiveMaximum"] - step
    first = -(-low // step)
    count = max(1, int((high - first * step) // step) + 1)
    value = (first + seed % count) * step
    return int(value) if whole else float(value)


def _string(schema: Mapping[str, Any], *, seed: int, **_: Any) -> str:
    if schema.get("format") in _FORMATS:
        return _FORMATS[schema["format"]]
    text = f"text-{seed % 0xFFFF:04x}"
    shortest, longest = schema.get("minLength", 0), schema.get("maxLength")
    return text.ljust(shortest, "x")[:longest]


def _resolve(pointer: str, root: Mapping[str, Any]) -> Any:
    target: Any = root
    for step in pointer.removeprefix("#").split("/")[1:]:
        target = target[step.replace("~1", "/").replace("~0", "~")]
    return target


def _by_type(kind: Any) -> Callable[..., Any]:
    return _BY_TYPE.get(kind, _string)


_BY_TYPE: dict[str, Callable[..., Any]] = {
    "object": _object,
    "array": _array,
    "string": _string,
    "integer": _number,
    "number": _number,
    "boolean": lambda _, *, seed, **__: bool(seed % 2),
    "null": lambda *_, **__: None,
}
