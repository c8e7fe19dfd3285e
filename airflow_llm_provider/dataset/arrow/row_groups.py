"""Parquet files written in row groups of a steady size, whatever the size of the batches that come."""

from __future__ import annotations

from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_llm_provider.dataset.arrow.repeats import repeating_columns

if TYPE_CHECKING:
    from types import TracebackType

#: Row groups that every reader takes well and that bound the memory of writer and reader.
ROWS_PER_GROUP = 1 << 17
BYTES_PER_GROUP = 64 << 20


class RowGroupWriter:
    """Gathers batches and writes them as row groups; a group never holds two gigabytes of text in one array.

    :param file: binary file, or anything that Arrow can write to.
    :param schema: the one schema of the file.
    :param rows: most rows of a group.
    :param size: bytes in memory at which a group is written.
    :param dictionary: the columns in which to look for repeated values; ``None``: those whose first values repeat.
    """

    def __init__(
        self,
        file: IO[bytes] | Any,
        schema: pa.Schema,
        *,
        rows: int = ROWS_PER_GROUP,
        size: int = BYTES_PER_GROUP,
        compression: str = "zstd",
        dictionary: list[str] | None = None,
    ) -> None:
        self._schema = schema
        self._rows = rows
        self._size = size
        self._batches: list[pa.RecordBatch] = []
        self._gathered_rows = 0
        self._gathered_bytes = 0
        self._file = file
        self._compression = compression
        self._dictionary = dictionary
        self._writer: pq.ParquetWriter | None = None
        #: Rows taken so far.
        self.rows = 0
        #: Row groups written so far.
        self.groups = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Take the next rows."""
        start = 0
        while start < batch.num_rows:
            part = batch.slice(start, self._rows - self._gathered_rows)
            start += part.num_rows
            self._gather(part)

    def _gather(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self.rows += batch.num_rows
        self._gathered_rows += batch.num_rows
        self._gathered_bytes += batch.nbytes
        if self._gathered_rows >= self._rows or self._gathered_bytes >= self._size:
            self.flush()

    def flush(self) -> None:
        """Write what was gathered as one row group."""
        self.write_group(self._batches)
        self._batches = []
        self._gathered_rows = self._gathered_bytes = 0

    def write_group(self, batches: list[pa.RecordBatch]) -> None:
        """Write batches as one row group, if they have any rows."""
        table = pa.Table.from_batches(batches, schema=self._schema)
        if table.num_rows:
            self._opened(table).write_table(table, row_group_size=table.num_rows)
            self.groups += 1

    def _opened(self, table: pa.Table) -> pq.ParquetWriter:
        if self._writer is None:
            dictionary = repeating_columns(table) if self._dictionary is None else self._dictionary
            self._writer = pq.ParquetWriter(
                self._file,
                self._schema,
                compression=self._compression,
                use_dictionary=dictionary,
                write_page_checksum=True,
            )
        return self._writer

    def close(self) -> None:
        """Write the rest and the footer."""
        self.flush()
        self._opened(self._schema.empty_table()).close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.discard()

    def discard(self) -> None:
        """Let go of a file that will be thrown away."""
        self._batches = []
        # Arrow has to be told before the file is closed under it; whatever it then says no longer matters.
        with suppress(OSError, ValueError, pa.ArrowException):
            if self._writer is not None:
                self._writer.close()
