"""Rows sorted into partitions: each partition's rows in their order, whatever the number of rows and partitions."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

#: Bytes of rows that are gathered before they are sorted and put away.
_BYTES_GATHERED = 64 << 20


class PartitionSorter:
    """Gathers rows, and gives them back partition by partition.

    Only one partition has to be written at a time: no thousand open files, and no thousand half-filled row groups in
    memory. Rows go through a temporary file without a name (in ``TMPDIR``) once they are more than fit into memory.

    :param schema: schema of the rows.
    :param memory: bytes that are kept in memory.
    """

    def __init__(self, schema: pa.Schema, *, memory: int = _BYTES_GATHERED) -> None:
        self._schema = schema
        self._memory = memory
        self._batches: list[pa.RecordBatch] = []
        self._numbers: list[NDArray[np.int64]] = []
        self._bytes = 0
        self._file: Any = None
        self._places: dict[int, list[int]] = {}

    def add(self, batch: pa.RecordBatch, numbers: NDArray[np.int64]) -> None:
        """Take the next rows.

        :param numbers: partition of each row.
        """
        self._batches.append(batch)
        self._numbers.append(numbers)
        self._bytes += batch.nbytes
        if self._bytes >= self._memory:
            self._put_away()

    def _sorted(self) -> Iterator[tuple[int, pa.Table]]:
        if not self._batches:
            return
        numbers = np.concatenate(self._numbers)
        order = np.argsort(numbers, kind="stable")
        table = pa.Table.from_batches(self._batches, self._schema)
        self._batches, self._numbers, self._bytes = [], [], 0
        found, starts = np.unique(numbers[order], return_index=True)
        for number, start, end in zip(found, starts, np.append(starts[1:], len(order)), strict=True):
            yield int(number), table.take(pa.array(order[start:end]))

    def _put_away(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="airflow-llm-")  # noqa: SIM115 -- closed by close()
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        for number, table in self._sorted():
            self._places.setdefault(number, []).append(self._file.tell())
            with pa.ipc.new_stream(self._file, self._schema, options=options) as writer:
                writer.write_table(table)

    def partitions(self) -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
        """Yield each partition with its rows in order, by its number; each must be used up before the next."""
        last = dict(self._sorted())
        for number in sorted({*self._places, *last}):
            yield number, self._rows(number, last.pop(number, None))

    def _rows(self, number: int, last: pa.Table | None) -> Iterator[pa.RecordBatch]:
        for place in self._places.get(number, ()):
            self._file.seek(place)
            with pa.ipc.open_stream(self._file) as reader:
                yield from reader
        if last is not None:
            yield from last.to_batches()

    def close(self) -> None:
        """Let go of the memory and the temporary file."""
        self._batches, self._numbers = [], []
        if self._file is not None:
            self._file.close()
