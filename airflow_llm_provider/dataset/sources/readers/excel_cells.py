"""Cells of Excel: their kinds, and what becomes of them in a column."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable

_EXACT_IN_FLOAT = 1 << 53
_BOOL, _INT, _FLOAT, _TEXT, _DATE, _MOMENT, _TIME, _SPAN = (1 << bit for bit in range(8))
#: Types of columns by the kinds of their cells; text, where a combination is missing.
TYPES = {
    0: pa.string(),
    _TEXT: pa.string(),
    _BOOL: pa.bool_(),
    _INT: pa.int64(),
    _FLOAT: pa.float64(),
    _INT | _FLOAT: pa.float64(),
    _DATE: pa.date32(),
    _MOMENT: pa.timestamp("us"),
    _DATE | _MOMENT: pa.timestamp("us"),
    _TIME: pa.time64("us"),
    _SPAN: pa.duration("us"),
}
_HOUR = 3600


def kind_of(value: Any) -> int:
    """Return the kind of a cell, one bit for each; 0: it is blank."""
    if isinstance(value, str):
        return _TEXT if value else 0
    if isinstance(value, bool):
        return _BOOL
    if isinstance(value, (int, float)):
        return _INT if abs(value) <= _EXACT_IN_FLOAT and value == int(value) else _FLOAT
    if isinstance(value, dt.datetime):
        return _MOMENT
    return {dt.date: _DATE, dt.time: _TIME, dt.timedelta: _SPAN}[type(value)]


def converter(kind: int) -> Callable[[Any], Any]:
    """Return what turns a cell into a value of its column's type."""
    if kind not in TYPES:
        return text_of
    if kind == _INT:
        return int
    return _moment if kind == _DATE | _MOMENT else _same


def _same(value: Any) -> Any:
    return value


def _moment(value: dt.date) -> dt.datetime:
    return value if isinstance(value, dt.datetime) else dt.datetime(value.year, value.month, value.day)  # noqa: DTZ001 -- Excel has no zones


def text_of(value: Any) -> str:
    """Write a cell of any kind, one form for each."""
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, (int, float)):
        return str(int(value)) if kind_of(value) == _INT else repr(value)
    if isinstance(value, dt.timedelta):
        seconds = value.total_seconds()
        return f"{'-' if seconds < 0 else ''}{int(abs(seconds)) // _HOUR}:{int(abs(seconds)) // 60 % 60:02d}:{abs(seconds) % 60:02g}"
    return value.isoformat() if isinstance(value, (dt.date, dt.time)) else str(value)
