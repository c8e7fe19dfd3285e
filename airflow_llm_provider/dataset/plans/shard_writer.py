"""Writing many shards: small ones side by side, in threads that encode, compress and wait for the storage."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from airflow_llm_provider.dataset.arrow.row_groups import RowGroupWriter

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from airflow_llm_provider.dataset.files.layout import Layout

#: Shards are read in pieces of this size, by rows and by bytes.
GROUP_ROWS = 1 << 14
GROUP_BYTES = 16 << 20
#: Shards up to this size are written in threads.
_BYTES_IN_MEMORY = 8 << 20
#: Threads that encode: more would keep more memory, and a worker has few cores to spare.
_ENCODERS = 2
#: Shards that are written at the same time: each takes milliseconds of waiting for a sync or a PUT.
_AT_ONCE = 8


class ShardWriter:
    """Writes shards, each whole; all of them are in place when the block ends.

    :param schema: columns of the input and of the shard.
    """

    def __init__(self, layout: Layout, schema: pa.Schema) -> None:
        self._layout = layout
        self._schema = schema
        self._encoders = ThreadPoolExecutor(_ENCODERS, thread_name_prefix="llm-encode")
        self._writers = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="llm-shards")
        self._pending: deque[Future[Future[None]]] = deque()

    def write(self, shard_id: str, batches: Iterable[pa.RecordBatch]) -> None:
        """Write one shard in the place of an older one.

        :raises LLMStateError: when it, or an earlier one, cannot be written.
        """
        rest = iter(batches)
        begun, size = [], 0
        for batch in rest:
            begun.append(batch)
            size += batch.nbytes
            if size > _BYTES_IN_MEMORY:
                # A large one goes through piece by piece, so that memory does not depend on the size of shards.
                self._write(shard_id, chain(begun, rest))
                return
        self._pending.append(self._encoders.submit(self._write_whole, shard_id, begun))
        while len(self._pending) > _AT_ONCE:
            self._pending.popleft().result().result()

    def _write_whole(self, shard_id: str, batches: Iterable[pa.RecordBatch]) -> Future[None]:
        """Encode in memory, outside of the interpreter, and let another thread wait for the storage."""
        buffer = pa.BufferOutputStream()
        self._encode(buffer, batches)
        data = buffer.getvalue().to_pybytes()
        return self._writers.submit(self._layout.storage.write_bytes, self._layout.shard(shard_id), data)

    def _write(self, shard_id: str, batches: Iterable[pa.RecordBatch]) -> None:
        with self._layout.storage.create(self._layout.shard(shard_id)) as file:
            self._encode(file, batches)

    def _encode(self, file: Any, batches: Iterable[pa.RecordBatch]) -> None:
        # Shards are written once and read once or twice: Snappy takes half of Zstandard's time for an eighth more bytes.
        with RowGroupWriter(
            file,
            self._schema,
            rows=GROUP_ROWS,
            size=GROUP_BYTES,
            compression="snappy",
            dictionary=[],
        ) as writer:
            for batch in batches:
                writer.write(batch)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Encoders first: they hand on to the writers.
        self._encoders.shutdown(wait=True)
        self._writers.shutdown(wait=True)
        if error is None:
            for pending in self._pending:
                pending.result().result()
