"""Rows as Python values, for rendering: the same at split time and later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_llm_provider.errors import LLMInputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

#: A printed sign of ASCII.
_SIGN = "[!-~]"
#: Rows that become Python values at once: few, since whoever has its answer meanwhile waits.
_STEP_ROWS = 64


def rows_of(batch: pa.RecordBatch, columns: Iterable[str]) -> list[dict[str, Any]]:
    """Return some columns of a batch as one dict per row."""
    names = list(columns)
    values = [_values(batch.column(name), name) for name in names]
    if not names:
        return [{} for _ in range(batch.num_rows)]
    return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]


def joined_texts(batch: pa.RecordBatch, between: Sequence[str], columns: Sequence[str]) -> list[str] | None:
    """Return one text for each row: its values of some columns, with the same texts around them in every row.

    :param between: texts before, between and after the columns: one more than these.
    :return: ``None`` when a column holds anything else than text, or text that is no UTF-8.
    """
    arrays = [batch.column(name) for name in columns]
    if not all(_is_text(array.type) for array in arrays):
        return None
    first, *others = (pa.scalar(text, pa.large_string()) for text in between)
    parts: list[Any] = [first]
    for array, after in zip(arrays, others, strict=True):
        parts += [array.cast(pa.large_string()), after]
    nothing = pa.scalar("", pa.large_string())
    joined = pc.binary_join_element_wise(*parts, nothing, null_handling="replace", null_replacement="")
    try:
        texts: list[str] = joined.to_pylist()
    except UnicodeDecodeError:
        return None
    return texts


def blank_rows(batch: pa.RecordBatch, columns: Iterable[str]) -> list[int]:
    """Return the positions of the rows whose texts in all of some columns, at least one, are null or blank."""
    arrays = [batch.column(name).cast(pa.large_string()) for name in columns]
    # A sign in the first one settles most rows without making Python texts of them.
    signs = pc.fill_null(pc.match_substring_regex(arrays[0], _SIGN), fill_value=False)
    positions: list[int] = pc.indices_nonzero(pc.invert(signs)).to_pylist()
    for array in arrays:
        texts = array.take(pa.array(positions, pa.int64())).to_pylist()
        positions = [
            position for position, text in zip(positions, texts, strict=True) if not text or text.isspace()
        ]
    return positions


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def iter_rows(batches: Iterable[pa.RecordBatch], columns: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield some columns of all batches, one dict per row."""
    names = list(columns)
    for batch in batches:
        for start in range(0, batch.num_rows, _STEP_ROWS):
            yield from rows_of(batch.slice(start, _STEP_ROWS), names)


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
