"""Rows between two passes: in memory while they are few, then in a temporary file."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator

_BYTES_IN_MEMORY = 48 << 20


class Spool:
    """Keeps batches in order, to be read as often as needed; memory does not grow with the dataset.

    The file lies in the temporary folder of the machine (``TMPDIR``) and has no name, so that nothing is left behind
    however the process ends. It is compressed, and about as large as the columns that are read.

    :param schema: schema of the batches.
    :param memory: bytes that are kept in memory.
    """

    def __init__(self, schema: pa.Schema, *, memory: int = _BYTES_IN_MEMORY) -> None:
        self._schema = schema
        self._memory = memory
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0
        self._file: Any = None
        self._writer: pa.RecordBatchStreamWriter | None = None

    def append(self, batch: pa.RecordBatch) -> None:
        """Keep one more batch."""
        if self._writer is not None:
            self._writer.write_batch(batch)
            return
        self._batches.append(batch)
        self._bytes += batch.nbytes
        if self._bytes > self._memory:
            self._spill()

    def _spill(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="airflow-llm-")  # noqa: SIM115 -- closed by close()
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        self._writer = pa.ipc.new_stream(self._file, self._schema, options=options)
        for batch in self._batches:
            self._writer.write_batch(batch)
        self._batches = []

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        if self._file is None:
            yield from self._batches
            return
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self._file.seek(0)
        with pa.ipc.open_stream(self._file) as reader:
            yield from reader

    def close(self) -> None:
        """Let go of the memory or the temporary file."""
        self._batches = []
        if self._file is not None:
            self._file.close()


class RowStream:
    """A stream of batches that is taken by numbers of rows."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._rest: pa.RecordBatch | None = None

    def take(self, rows: int) -> Iterator[pa.RecordBatch]:
        """Yield the next rows, in pieces."""
        while rows:
            batch = self._rest if self._rest is not None else next(self._batches)
            piece = batch.slice(0, rows)
            self._rest = batch.slice(rows) if batch.num_rows > rows else None
            rows -= piece.num_rows
            yield piece
