"""How many bytes rows take."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from numpy.typing import NDArray


#: Bytes of one batch in memory.
BATCH_BYTES = 4 << 20


def rows_that_fit(batch: pa.RecordBatch | None, most: int) -> int:
    """Return how many rows like these make a batch."""
    if batch is None or not batch.nbytes:
        return most
    return max(1, min(most, int(BATCH_BYTES * batch.num_rows // batch.nbytes)))


def row_bytes(batch: pa.RecordBatch) -> NDArray[np.int64]:
    """Return the bytes of each row: exactly for text, by the batch's average for nested columns."""
    total = np.zeros(batch.num_rows, dtype=np.int64)
    for array in batch.columns if batch.num_rows else []:
        kind = array.type
        if pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_large_string(kind):
            lengths = pc.fill_null(pc.binary_length(array), 0)
            total += lengths.to_numpy(zero_copy_only=False).astype(np.int64) + 4
        else:
            total += -(-array.nbytes // batch.num_rows)
    return total
