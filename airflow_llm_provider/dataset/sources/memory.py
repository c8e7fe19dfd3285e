"""A table in memory as a source: pandas, Arrow, or whatever hands out its rows as Arrow does, such as Polars."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import pandas as pd
import pyarrow as pa

from airflow_llm_provider.dataset.arrow.content_hash import ContentHash
from airflow_llm_provider.dataset.arrow.sizes import rows_that_fit
from airflow_llm_provider.dataset.files.urls import reason
from airflow_llm_provider.dataset.sources.readers.lasting import lasting_batch, lasting_schema
from airflow_llm_provider.dataset.sources.readers.unify import MergedSchema
from airflow_llm_provider.dataset.sources.source import BATCH_ROWS
from airflow_llm_provider.errors import LLMInputError, LLMStateError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from airflow_llm_provider.dataset.files.layout import Layout
    from airflow_llm_provider.dataset.sources.where.row_filter import RowFilter


#: Rows that tell how large the rows are.
_PROBE_ROWS = 16


class ArrowStream(Protocol):
    """Anything that hands out its rows by Arrow's C stream: tables of pyarrow, pandas, Polars, relations of DuckDB."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return a capsule with the stream."""
        ...


#: What :class:`MemorySource` takes.
InMemory: TypeAlias = "pd.DataFrame | pa.Table | pa.RecordBatch | pa.RecordBatchReader | ArrowStream"


class MemorySource:
    """Rows in memory, or from a stream that is read once.

    :param data: the rows. Of a pandas index, levels with a name become columns; NaN is null, as pandas means it.
    :raises LLMInputError: when it is no table, or has columns that the output cannot hold.
    """

    def __init__(self, data: InMemory) -> None:
        self._whose = f"the {type(data).__module__.partition('.')[0]} {type(data).__name__}"
        self._data: Any = _frame(data) if isinstance(data, pd.DataFrame) else data
        self._is_spent = False
        merged = MergedSchema()
        merged.add(self._schema(), self._whose)
        self.schema: pa.Schema = lasting_schema(merged.schema(), self._whose)
        if not len(self.schema):
            raise LLMInputError(f"{self._whose} has no columns")
        self.notes: list[str] = []
        self.is_blank = False
        self.files_skipped = 0
        self._size = 0
        self._hash: ContentHash | None = None

    def _schema(self) -> pa.Schema:
        if isinstance(self._data, pa.RecordBatch):
            self._data = pa.Table.from_batches([self._data])
        if isinstance(self._data, (pa.Table, pa.RecordBatchReader)):
            given: pa.Schema = self._data.schema
            return given
        if not hasattr(self._data, "__arrow_c_stream__"):
            raise LLMInputError(
                f"the source is a {type(self._data).__name__}: give a path or URL, a pandas DataFrame, an Arrow table or "
                "reader, or something else that has __arrow_c_stream__"
            )
        try:
            self._data = pa.RecordBatchReader.from_stream(self._data)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise LLMInputError(
                f"{self._whose} cannot be read as an Arrow table ({reason(error)})"
            ) from error
        schema: pa.Schema = self._data.schema
        return schema

    def batches(
        self,
        batch_rows: int = BATCH_ROWS,
        *,
        columns: Collection[str] | None = None,
        row_filter: RowFilter | None = None,  # noqa: ARG002 -- there are no files to pass over
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows in order, in batches bounded by rows and by bytes."""
        wanted = pa.schema(field for field in self.schema if columns is None or field.name in columns)
        self._hash, self._size = ContentHash(wanted, b""), 0
        for whole in self._whole_batches():
            start = 0
            probe = lasting_batch(whole.slice(0, _PROBE_ROWS), wanted, self._whose)
            rows = rows_that_fit(probe, batch_rows)
            while start < whole.num_rows:
                batch = lasting_batch(whole.slice(start, rows), wanted, self._whose)
                self._hash.update(batch)
                self._size += batch.nbytes
                yield batch
                start += batch.num_rows
                rows = rows_that_fit(batch, batch_rows)

    def _whole_batches(self) -> Iterator[pa.RecordBatch]:
        if isinstance(self._data, pa.Table):
            yield from self._data.to_batches()
            return
        if self._is_spent:
            raise LLMInputError(
                f"{self._whose} is a stream that was read already: give a table, or a new one"
            )
        self._is_spent = True
        batches = iter(self._data)
        while True:
            try:
                batch = next(batches, None)
            except Exception as error:
                # Not its words: they may quote a row.
                raise LLMStateError(
                    f"{self._whose} could not be read to its end ({type(error).__name__})"
                ) from error
            if batch is None:
                return
            yield batch

    def snapshot(self) -> list[dict[str, Any]]:
        """Say what was read: its version is a hash of the values."""
        version = "" if self._hash is None else self._hash.hexdigest()
        return [{"uri": f"memory: {self._whose}", "size": self._size, "version": version}]

    def check_apart(self, layout: Layout) -> None:
        """Do nothing: memory is apart from any storage."""

    def check_unchanged(self) -> None:
        """Do nothing: what was read was read once."""


def _frame(frame: pd.DataFrame) -> pa.Table:
    """Turn a DataFrame into a table, column by column, so that a bad one can be named."""
    named = [name for name in frame.index.names if name is not None]
    whole = frame
    if named:
        try:
            whole = frame.reset_index(level=named)
        except ValueError as error:
            raise LLMInputError(
                f"the DataFrame has an index and a column of the same name: rename one of {named!r}"
            ) from error
    odd = [name for name in whole.columns if not isinstance(name, str)]
    if odd:
        raise LLMInputError(
            f"the DataFrame has columns whose names are no text, {odd[:5]!r}: rename them, as with "
            "frame.rename(columns=str)"
        )
    return pa.Table.from_arrays(
        [_column(whole.iloc[:, position], str(name)) for position, name in enumerate(whole.columns)],
        names=list(whole.columns),
    )


def _column(series: pd.Series[Any], name: str) -> pa.Array:
    try:
        return pa.array(series, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        # Their words quote a value.
        raise LLMInputError(
            f"column {name!r} of the DataFrame holds values that one Arrow column cannot hold ({type(error).__name__}): "
            "give them one type, as with .astype('string')"
        ) from error
