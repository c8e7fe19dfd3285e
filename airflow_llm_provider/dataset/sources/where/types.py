"""What kinds of columns a condition tells apart, and what it calls them."""

from __future__ import annotations

import pyarrow as pa

_NAMES = (
    (pa.types.is_integer, "integers"),
    (pa.types.is_floating, "floats"),
    (pa.types.is_decimal, "decimals"),
    (pa.types.is_date, "dates"),
    (pa.types.is_timestamp, "timestamps"),
    (pa.types.is_time, "times"),
    (pa.types.is_boolean, "booleans"),
)


def is_text(kind: pa.DataType) -> bool:
    """Tell whether values are text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def value_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the values behind a dictionary."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def shown(kind: pa.DataType) -> str:
    """Say what a column holds."""
    if is_text(kind):
        return "text"
    return next((name for belongs, name in _NAMES if belongs(kind)), f"{kind} values")
