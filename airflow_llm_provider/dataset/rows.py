"""Rows as Python values, for rendering: the same at split time and later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_llm_provider.errors import LLMInputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def rows_of(batch: pa.RecordBatch, columns: Iterable[str]) -> list[dict[str, Any]]:
    """Return some columns of a batch as one dict per row."""
    names = list(columns)
    values = [_values(batch.column(name), name) for name in names]
    if not names:
        return [{} for _ in range(batch.num_rows)]
    return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]


def text_columns(batch: pa.RecordBatch, columns: Iterable[str]) -> dict[str, list[str]] | None:
    """Return some columns of a batch as text, nulls as empty text; ``None`` when one of them holds anything else."""
    arrays = {name: batch.column(name) for name in columns}
    if not all(_is_text(array.type) for array in arrays.values()):
        return None
    texts = {name: _values(array, name) for name, array in arrays.items()}
    for name, array in arrays.items():
        if array.null_count:
            texts[name] = ["" if value is None else value for value in texts[name]]
    return texts


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def iter_rows(batches: Iterable[pa.RecordBatch], columns: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield some columns of all batches, one dict per row."""
    names = list(columns)
    for batch in batches:
        yield from rows_of(batch, names)


def _values(array: pa.Array, name: str) -> list[Any]:
    try:
        values: list[Any] = array.to_pylist()
    except UnicodeDecodeError:
        # Other writers put bytes into string columns that are no UTF-8. The column itself passes through as it is.
        values = [
            None if v is None else v.decode("utf-8", "replace") for v in array.cast(pa.binary()).to_pylist()
        ]
    except (OverflowError, ValueError, KeyError) as error:  # a missing time zone is a KeyError
        raise LLMInputError(
            f"the prompt uses column {name!r}, whose {array.type} values Python cannot hold ({type(error).__name__}), "
            "such as a date beyond the year 9999 or an unknown time zone: make it text in the source, or leave it out"
        ) from error
    return values
