"""Cells of text as what their column is declared to be: exactly, or an error. A blank cell is null then."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from airflow_llm_provider.dataset.arrow.type_names import decimal_of

if TYPE_CHECKING:
    from collections.abc import Sequence

_TYPES = {
    "text": pa.string(),
    "int64": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamp_utc": pa.timestamp("us", "UTC"),
}
#: Arrow reads hexadecimal numbers as well.
_INTEGER = re.compile(r"-?[0-9]+")


def declared_type(name: str) -> pa.DataType:
    """Return the type of a name."""
    decimal = decimal_of(name)
    return _TYPES[name] if decimal is None else pa.decimal128(*decimal)


def typed(cells: Sequence[str], kind: pa.DataType) -> tuple[pa.Array, int | None]:
    """Return the values of cells, and the position of the first that is none; ``None``: all are."""
    if pa.types.is_string(kind):
        return pa.array(cells, kind), None
    texts = pa.array([cell or None for cell in cells], pa.string())
    values = _cast(texts, kind)
    if values is not None:
        return values, None
    bad = next(n for n in range(len(texts)) if _cast(texts.slice(n, 1), kind) is None)
    return texts, bad


def _cast(texts: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """Cast texts; ``None``: one of them is no such value."""
    if pa.types.is_integer(kind):
        strange = [text for text in texts.to_pylist() if text is not None and not _INTEGER.fullmatch(text)]
        if strange:
            return None
    try:
        values = texts.cast(kind)
    except pa.ArrowInvalid:
        return None
    if pa.types.is_floating(kind):
        beyond = pc.and_kleene(
            pc.is_inf(values), pc.invert(pc.match_substring(texts, "inf", ignore_case=True))
        )
        return None if pc.any(beyond).as_py() else values
    return values
