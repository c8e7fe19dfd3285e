"""How a value of a row prints in a prompt: the same bytes on every machine and every night.

====================  ==========================================================================
null, NaN, NaT        nothing
text                  as it is; lone surrogates become U+FFFD, see :func:`clean_text`
boolean               ``true``, ``false``: as inside lists and objects
integer, decimal      every digit
float                 the shortest digits that read back as the same number
date, time            ISO 8601; durations too
list, object, array   compact JSON, not escaped to ASCII
bytes, anything else  an error that names the column
====================  ==========================================================================
"""

from __future__ import annotations

import datetime as dt
import math
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from enum import Enum
from typing import Any

import orjson

from airflow_llm_provider.errors import LLMError

_SURROGATE = re.compile("[\ud800-\udfff]")
#: pandas' own missing values, recognised by name: pandas is not a dependency of this layer.
_MISSING_TYPES = frozenset({"NAType", "NaTType"})
_JSON_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_PASSTHROUGH_DATETIME
_INT64 = range(-(2**63), 2**63)


class RowRenderError(LLMError, ValueError):
    """One row cannot be turned into a prompt; the others can. The message holds no value of the row.

    :param reason: what is wrong, without values.
    :param column: column at fault, where known.
    """

    def __init__(self, reason: str, *, column: str | None = None) -> None:
        super().__init__(reason if column is None else f"column {column!r}: {reason}")
        self.reason = reason
        self.column = column


def clean_text(text: str) -> str:
    """Replace lone surrogates, which are no text and fit into no request or file, by U+FFFD.

    Counting, sending and writing all use this, so they always see the same text.
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text)
    return text


def is_missing(value: Any) -> bool:
    """Say whether a value is null: ``None``, NaN, or pandas' ``NA`` and ``NaT``."""
    return (
        value is None
        or (isinstance(value, float) and math.isnan(value))
        or (isinstance(value, Decimal) and value.is_nan())
        or type(value).__name__ in _MISSING_TYPES
    )


def is_blank(value: Any) -> bool:
    """Say whether a value brings nothing to a prompt: null, NaN, white space, an empty list or object."""
    if isinstance(value, str):
        return not value or value.isspace()
    if isinstance(value, (Mapping, Sequence)):
        return not value
    return is_missing(value)


def print_value(value: Any) -> str:
    """Print a value as it goes into the prompt.

    :raises RowRenderError: when its type has no deterministic text.
    """
    kind = type(value)
    if kind is str:
        return value  # type: ignore[no-any-return]  # a str by the line above
    printer = _PRINTERS.get(kind)
    return printer(value) if printer is not None else _print_other(value)


def _print_json(value: Any) -> str:
    try:
        return _dump(value)
    except orjson.JSONEncodeError:
        pass
    try:
        # Integers beyond 64 bits and lone surrogates: rare, and orjson refuses them.
        return _dump(_without_oddities(value))
    except (orjson.JSONEncodeError, RecursionError):
        raise RowRenderError("holds a list or object that cannot be written as JSON") from None


def _dump(value: Any) -> str:
    try:
        return orjson.dumps(value, default=_json_default, option=_JSON_OPTIONS).decode()
    except orjson.JSONEncodeError as error:
        if isinstance(error.__cause__, RowRenderError):
            raise error.__cause__ from None
        raise


def _json_default(value: Any) -> Any:
    if is_missing(value):
        return None
    if isinstance(value, Decimal):
        return orjson.Fragment(_print_decimal(value)) if value.is_finite() else None
    if isinstance(value, (set, frozenset)):
        raise RowRenderError("a set has no order: use a list")
    if hasattr(value, "tolist"):  # arrays that orjson leaves alone, such as those of objects
        return value.tolist()
    return print_value(value)


def _without_oddities(value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, int) and value not in _INT64:
        return orjson.Fragment(str(int(value)))
    if isinstance(value, Mapping):
        return {_json_key(key): _without_oddities(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_oddities(item) for item in value]
    return value


def _json_key(key: Any) -> str:
    return clean_text(key) if isinstance(key, str) else print_value(key)


def _print_decimal(value: Decimal) -> str:
    return format(value, "f") if value.is_finite() else str(value)


def _print_duration(value: dt.timedelta) -> str:
    """Print a duration in ISO 8601, as pandas does, whatever class it has."""
    sign = "-" if value < dt.timedelta(0) else ""
    value = abs(value)
    minutes, seconds = divmod(value.seconds, 60)
    hours, minutes = divmod(minutes, 60)
    nanoseconds = value.microseconds * 1000 + getattr(value, "nanoseconds", 0)
    fraction = f".{nanoseconds:09d}".rstrip("0") if nanoseconds else ""
    return f"{sign}P{value.days}DT{hours}H{minutes}M{seconds}{fraction}S"


def _print_float(value: float) -> str:
    return "" if math.isnan(value) else repr(float(value))


def _print_bool(value: bool) -> str:  # noqa: FBT001 -- the value itself
    return "true" if value else "false"


def _refuse_bytes(_: object) -> str:
    raise RowRenderError("holds bytes, which are no text: decode them into a text column first")


_PRINTERS: dict[type, Callable[[Any], str]] = {
    type(None): lambda _: "",
    bool: _print_bool,
    int: str,
    float: _print_float,
    list: _print_json,
    tuple: _print_json,
    dict: _print_json,
    Decimal: lambda value: "" if value.is_nan() else _print_decimal(value),
    dt.datetime: dt.datetime.isoformat,
    dt.date: dt.date.isoformat,
    dt.time: dt.time.isoformat,
    dt.timedelta: _print_duration,
    uuid.UUID: str,
    bytes: _refuse_bytes,
    bytearray: _refuse_bytes,
    memoryview: _refuse_bytes,
}


def _print_other(value: Any) -> str:
    """Print subclasses and numpy's values by what they are."""
    if is_missing(value):
        return ""
    if isinstance(value, Enum):
        return print_value(value.value)
    printer = next((printer for known, printer in _KNOWN if isinstance(value, known)), None)
    if printer is not None:
        return printer(value)
    if hasattr(value, "tolist"):
        return print_value(value.tolist())
    raise RowRenderError(f"holds a {type(value).__name__}, which has no text of its own: convert it first")


#: By what a value is an instance of; the narrower class first.
_KNOWN: tuple[tuple[type, Callable[[Any], str]], ...] = (
    (str, str.__str__),
    (Mapping, lambda value: _print_json(dict(value))),
    (dt.datetime, lambda value: str(value.isoformat())),
    *_PRINTERS.items(),
)
