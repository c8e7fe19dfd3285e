"""Columns whose values repeat, for which a dictionary is worth its while."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

#: Rows that are looked at.
_SAMPLE = 1024
#: A column of which more of the sample's values are different gets no dictionary.
_DIFFERENT = 0.5


def repeating_columns(table: pa.Table) -> bool | list[str]:
    """Name the columns whose first values repeat; ``True``: all, as far as Parquet looks for itself.

    Parquet builds a dictionary of whatever it is told to, and lets it drop when it has grown too large: for texts that are
    all different a third of the time that it takes to write them.

    :param table: rows that lie next to one another in the file.
    """
    if any(pat.is_nested(field.type) for field in table.schema):
        return True  # what lies below a column goes by names that only the file knows
    sample = table.slice(0, _SAMPLE)
    most = _DIFFERENT * sample.num_rows
    return [name for name in table.schema.names if _different(sample.column(name)) <= most]


def _different(column: pa.ChunkedArray) -> int:
    try:
        count: int = pc.count_distinct(column, mode="all").as_py()
    except pa.ArrowNotImplementedError:  # views and other rare types
        return 0
    return count
