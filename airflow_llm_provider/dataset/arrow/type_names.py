"""What a user may declare a column of text to be. No Arrow: a DAG file checks such names too."""

from __future__ import annotations

import re
from collections.abc import Mapping

from airflow_llm_provider.errors import LLMInputError

#: Names of types; ``timestamp_utc`` is one whose cells have an offset, such as ``2026-01-31T08:30:00+02:00``.
TYPE_NAMES = ("text", "int64", "double", "boolean", "date", "timestamp", "timestamp_utc", "decimal(p, s)")
_DECIMAL = re.compile(r"decimal\((\d{1,2}), ?(\d{1,2})\)")
_MOST_DIGITS = 38


def decimal_of(name: str) -> tuple[int, int] | None:
    """Return precision and scale of a decimal's name; ``None``: it is no decimal."""
    match = _DECIMAL.fullmatch(name)
    if match is None:
        return None
    precision, scale = int(match[1]), int(match[2])
    return (precision, scale) if 1 <= precision <= _MOST_DIGITS and scale <= precision else None


def check_types(types: object) -> None:
    """Make sure that columns are declared to be something that is known.

    :raises LLMInputError: naming the column and the types there are.
    """
    if types is None:
        return
    if not isinstance(types, Mapping) or not types:
        raise LLMInputError(
            f"types is {types!r}: give types by column, such as {{'score': 'int64'}}, or None"
        )
    for column, name in types.items():
        known = isinstance(name, str) and (name in TYPE_NAMES[:-1] or decimal_of(name) is not None)
        if not known or not isinstance(column, str):
            raise LLMInputError(f"types[{column!r}] is {name!r}: give one of {', '.join(TYPE_NAMES)}")
