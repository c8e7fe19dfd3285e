"""Neighbouring rows, sorted by their tokens: like with like, in runs that fit into memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Rows and bytes of one run: the merge, which puts its rows back in their order, holds them in memory.
ROWS_OF_RUN = 1 << 17
BYTES_OF_RUN = 32 << 20
_BATCH_ROWS = 4096


class SortingWindow:
    """Gathers rows until they are a run, and sorts them.

    :param rows: most rows of a run, as far as batches allow.
    :param size: bytes at which a run ends.
    """

    def __init__(self, *, rows: int = ROWS_OF_RUN, size: int = BYTES_OF_RUN) -> None:
        self._most_rows = rows
        self._most_bytes = size
        self._batches: list[pa.RecordBatch] = []
        self._rows = 0
        self._bytes = 0

    @property
    def full(self) -> bool:
        """Whether the run is as large as it may be."""
        return self._rows >= self._most_rows or self._bytes >= self._most_bytes

    def add(self, batch: pa.RecordBatch) -> None:
        """Take the next rows."""
        self._batches.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes

    def sorted(self) -> list[pa.RecordBatch]:
        """Return the run's rows by their tokens, those that are not sent first, and begin the next run."""
        if not self._batches:
            return []
        table = pa.Table.from_batches(self._batches)
        self._batches, self._rows, self._bytes = [], 0, 0
        order = np.argsort(tokens_sent(table), kind="stable")
        batches: list[pa.RecordBatch] = table.take(pa.array(order)).to_batches(max_chunksize=_BATCH_ROWS)
        return batches


def tokens_sent(rows: pa.RecordBatch | pa.Table) -> NDArray[np.int64]:
    """Return the prompt tokens of each row that will be sent, and 0 of the others."""
    sent = np.asarray(rows.column("_llm_fingerprint").is_valid())
    counts = np.asarray(rows.column("_llm_tokens"), dtype=np.int64)
    return np.where(sent, counts, 0)


def in_order(batches: list[pa.RecordBatch], numbers: NDArray[np.int64]) -> list[pa.RecordBatch]:
    """Put rows back into the order of the input.

    :param numbers: number of each row in the input.
    """
    if not batches:
        return []
    table = pa.Table.from_batches(batches).take(pa.array(np.argsort(numbers, kind="stable")))
    restored: list[pa.RecordBatch] = table.to_batches(max_chunksize=_BATCH_ROWS)
    return restored
