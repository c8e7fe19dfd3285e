"""A results file in memory: row groups, encoded and compressed by a thread while further rows still end."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_llm_provider.dataset.arrow.row_groups import BYTES_PER_GROUP, RowGroupWriter

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Rows of a row group, at least and at most. Below, what a group takes by itself counts; above, nothing is gained.
_FEWEST_ROWS, _MOST_ROWS = 256, 8192


class ResultsBuffer:
    """Takes encoded rows, and gives the whole file in the end. Compressed, they take a third of the memory.

    A row group is half of the rows that are still to come, so that little is left to do when the last one has. Its
    thread ends in :meth:`finish`, or in :meth:`close`.

    :param schema: schema of the file.
    :param repeating: columns whose values repeat.
    :param rows: rows that will come.
    """

    def __init__(self, schema: pa.Schema, repeating: Sequence[str], *, rows: int) -> None:
        self._buffer = pa.BufferOutputStream()
        self._writer = RowGroupWriter(self._buffer, schema, dictionary=list(repeating))
        self._aside = ThreadPoolExecutor(1, thread_name_prefix="llm-results")
        self._groups: deque[list[pa.RecordBatch]] = deque()
        self._batches: list[pa.RecordBatch] = []
        self._rows = self._size = 0
        self._to_come = rows

    def add(self, batch: pa.RecordBatch) -> None:
        """Take the next rows, which share no memory with others."""
        self._batches.append(batch)
        self._rows += batch.num_rows
        # RecordBatch.nbytes takes as long as encoding the rows.
        self._size += batch.get_total_buffer_size()
        enough = min(max(self._to_come // 2, _FEWEST_ROWS), _MOST_ROWS)
        if self._rows >= enough or self._size >= BYTES_PER_GROUP:
            self._groups.append(self._batches)
            self._to_come -= self._rows
            self._batches, self._rows, self._size = [], 0, 0
            with suppress(RuntimeError):  # no thread is to be had: finish() does all that is left
                self._aside.submit(self._write_groups)

    def finish(self) -> pa.Buffer:
        """Return the file, once; raise what failed on the way."""
        self._aside.shutdown()
        self._groups.append(self._batches)
        self._write_groups()
        self._writer.close()
        return self._buffer.getvalue()

    def close(self) -> None:
        """End the thread; what :meth:`finish` has not returned is lost."""
        self._aside.shutdown(cancel_futures=True)

    def _write_groups(self) -> None:
        while self._groups:
            # What fails stays the next one, so that finish() meets it, too.
            self._writer.write_group(self._groups[0])
            self._groups.popleft()
