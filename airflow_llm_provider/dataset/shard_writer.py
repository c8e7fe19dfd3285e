"""Writing many shards: the next one is encoded while the last ones are on their way to the storage."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

from airflow_llm_provider.dataset.row_groups import RowGroupWriter

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    import pyarrow as pa

    from airflow_llm_provider.dataset.layout import Layout

#: Shards are read in pieces of this size, by rows and by bytes.
_GROUP_ROWS = 1 << 14
_GROUP_BYTES = 16 << 20
#: Files that are synced, or put, at the same time: each takes milliseconds of waiting.
_AT_ONCE = 8


class ShardWriter:
    """Writes shards, each whole; all of them are in place when the block ends.

    :param schema: columns of the input and of the shard.
    """

    def __init__(self, layout: Layout, schema: pa.Schema) -> None:
        self._layout = layout
        self._schema = schema
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="llm-shards")
        self._pending: deque[Future[None]] = deque()

    def write(self, shard_id: str, batches: Iterable[pa.RecordBatch]) -> None:
        """Write one shard in the place of an older one.

        :raises LLMStateError: when it, or an earlier one, cannot be written.
        """
        with ExitStack() as stack:
            file = stack.enter_context(self._layout.storage.create(self._layout.shard(shard_id)))
            with RowGroupWriter(file, self._schema, rows=_GROUP_ROWS, size=_GROUP_BYTES) as writer:
                for batch in batches:
                    writer.write(batch)
            # The file is encoded: what is left is to wait for the storage.
            self._pending.append(self._pool.submit(stack.pop_all().close))
        while len(self._pending) > _AT_ONCE:
            self._pending.popleft().result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=True)
        if error is None:
            for pending in self._pending:
                pending.result()
