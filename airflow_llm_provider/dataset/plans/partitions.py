"""Partitions of an output: which columns may make them, and the folders that their values name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from airflow_llm_provider.errors import LLMInputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

#: Most folders of one output; what pyarrow writes at most, too.
MOST_PARTITIONS = 1024
#: What Hive, Spark, pyarrow and DuckDB call a null.
HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
#: What Spark escapes, and with it all that no path or URL takes. Other characters stay: Spark reads a percent sign as
#: one character, not as one byte of UTF-8.
_UNSAFE = re.compile("[\x00-\x1f\"#%'*/:=?\\\\\x7f{\\[\\]^]")
#: Bytes of the name of a file or folder on nearly every filesystem.
_LONGEST_NAME = 255

#: The values of one partition as text, in the order of the columns.
Values = tuple[str | None, ...]


def check_partition_by(columns: Sequence[str], schema: pa.Schema) -> None:
    """Refuse columns that make no folders which every reader understands.

    :param columns: the columns to partition by.
    :param schema: schema of the output.
    :raises LLMInputError: naming the column and what may be given.
    """
    unknown = [name for name in columns if name not in schema.names]
    if unknown:
        raise LLMInputError(
            f"partition_by names {', '.join(map(repr, unknown))}, which the output does not have; its columns are "
            f"{', '.join(map(repr, schema.names))}"
        )
    if len(columns) == len(schema):
        raise LLMInputError(
            "partition_by names every column of the output: at least one must stay in the files"
        )
    for name in columns:
        kind = schema.field(name).type
        if not _makes_folders(kind):
            raise LLMInputError(
                f"partition_by names {name!r}, which is {kind}: only texts, integers, booleans and dates make folders "
                "whose names read back as the same values"
            )
        if name[:1] in {"", ".", "_"} or _UNSAFE.search(name):
            raise LLMInputError(
                f"partition_by names {name!r}: readers pass over folders that begin with '_', '.' or '=', and do not "
                "unescape the names of columns; rename it in the source"
            )


def _makes_folders(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _makes_folders(kind.value_type)
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    return bool(is_text or pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_date32(kind))


class PartitionKeys:
    """Finds the partition of each row, by the order of the partitions' first rows.

    :param columns: the columns to partition by.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = tuple(columns)
        self._numbers: dict[Values, int] = {}

    @property
    def found(self) -> list[Values]:
        """The partitions so far."""
        return list(self._numbers)

    def numbers(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        """Return the partition of each row of a batch.

        :raises LLMInputError: when there are more partitions than one output has.
        """
        codes = np.zeros(batch.num_rows, dtype=np.int64)
        columns: list[tuple[list[str | None], NDArray[np.int64]]] = []
        for name in self._columns:
            array = batch.column(name)
            if pa.types.is_dictionary(array.type):
                array = array.dictionary_decode()
            encoded = array.cast(pa.large_string()).dictionary_encode(null_encoding="encode")
            texts, indices = encoded.dictionary.to_pylist(), np.asarray(encoded.indices, dtype=np.int64)
            columns.append((texts, indices))
            codes = codes * max(1, len(texts)) + indices
            if len(columns) > 1:
                # No more than there are rows: many columns have more combinations than there are integers.
                _, codes = np.unique(codes, return_inverse=True)
        found, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
        numbers = np.zeros(len(found), dtype=np.int64)
        # In the order in which they come, so that the same rows give the same partitions however they are batched.
        for position in np.argsort(first):
            row = first[position]
            numbers[position] = self._number(tuple(texts[indices[row]] for texts, indices in columns))
        return numbers[inverse]

    def _number(self, values: Values) -> int:
        known = self._numbers.get(values)
        if known is None:
            folder_of(self._columns, values)
            self.add([values])
            known = self._numbers[values]
        return known

    def add(self, values: Iterable[Values]) -> None:
        """Take partitions that others have found.

        :raises LLMInputError: when there are more partitions than one output has.
        """
        for one in values:
            self._numbers.setdefault(one, len(self._numbers))
        if len(self._numbers) > MOST_PARTITIONS:
            raise LLMInputError(
                f"partition_by {', '.join(map(repr, self._columns))} makes more than {MOST_PARTITIONS:,} partitions: give "
                "columns with fewer different values, then clear the split and everything after it; answers that are "
                "paid for are kept"
            )


def folder_of(columns: Sequence[str], values: Values) -> str:
    """Return the folder of a partition, as ``ds=2026-01-31/lang=__HIVE_DEFAULT_PARTITION__``.

    An empty text has no folder that Spark reads, so it is where nulls are.

    :raises LLMInputError: when a value is too long for a name.
    """
    names = [
        f"{column}={HIVE_NULL if not value else _UNSAFE.sub(_escaped, value)}"
        for column, value in zip(columns, values, strict=True)
    ]
    for column, name in zip(columns, names, strict=True):
        size = len(name.encode())
        if size > _LONGEST_NAME:
            raise LLMInputError(
                f"partition_by {column!r} has a value whose folder would have a name of {size} bytes, more than the "
                f"{_LONGEST_NAME} that filesystems take: leave the column out of partition_by"
            )
    return "/".join(names)


def _escaped(match: re.Match[str]) -> str:
    return f"%{ord(match[0]):02X}"


def restored(values: Mapping[str, str | None], kinds: pa.Schema, rows: int) -> dict[str, pa.Array]:
    """Return the columns of a partition, with the types that they had.

    :param values: text of the value of each column.
    """
    arrays = {}
    for name, value in values.items():
        kind = kinds.field(name).type
        plain = kind.value_type if pa.types.is_dictionary(kind) else kind
        one = pa.array([value], pa.large_string()).cast(plain)
        array = pa.nulls(rows, plain) if value is None else pa.repeat(one[0], rows)
        arrays[name] = array.dictionary_encode().cast(kind) if pa.types.is_dictionary(kind) else array
    return arrays
