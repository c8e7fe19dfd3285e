"""Rows as Python values, for rendering: the same at split time and later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def rows_of(batch: pa.RecordBatch, columns: Iterable[str]) -> list[dict[str, Any]]:
    """Return some columns of a batch as one dict per row."""
    names = list(columns)
    values = [_values(batch.column(name)) for name in names]
    if not names:
        return [{} for _ in range(batch.num_rows)]
    return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]


def iter_rows(batches: Iterable[pa.RecordBatch], columns: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield some columns of all batches, one dict per row."""
    names = list(columns)
    for batch in batches:
        yield from rows_of(batch, names)


def _values(array: pa.Array) -> list[Any]:
    try:
        values: list[Any] = array.to_pylist()
    except UnicodeDecodeError:
        # Other writers put bytes into string columns that are no UTF-8. The column itself passes through as it is.
        values = [
            None if v is None else v.decode("utf-8", "replace") for v in array.cast(pa.binary()).to_pylist()
        ]
    return values
