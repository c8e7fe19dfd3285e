"""Names of shards: hashes of what they hold."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from airflow_llm_provider.dataset.arrow.content_hash import ContentHash
from airflow_llm_provider.dataset.plans.checksum import repeated

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from airflow_llm_provider.dataset.drafting.packing import Cut


class ShardNames:
    """Names shards while their rows pass by.

    :param schema: the columns that are the content: the input's, and messages if a function made them.
    :param salt: what else makes a shard what it is.
    """

    def __init__(self, schema: pa.Schema, salt: bytes) -> None:
        self._schema = schema
        self._salt = salt
        self._seen: Counter[str] = Counter()
        self._open = ContentHash(schema, salt)
        self._rows = 0
        #: Names of the shards that are complete, in order.
        self.names: list[str] = []

    def add(self, batch: pa.RecordBatch, cuts: Sequence[Cut]) -> list[tuple[int, int]]:
        """Take the next rows; return the index of the shard of each piece of them, and the piece's rows.

        :param cuts: every shard whose end is known by now, from the first; rows beyond them belong to the next.
        """
        pieces = []
        content = batch.select(self._schema.names)
        start = 0
        while True:
            index = len(self.names)
            end = cuts[index].first_row + cuts[index].rows - self._rows if index < len(cuts) else None
            if end is None or end > batch.num_rows:
                break
            self._open.update(content.slice(start, end - start))
            pieces.append((index, end - start))
            self._close()
            start = end
        if start < batch.num_rows:
            self._open.update(content.slice(start))
            pieces.append((len(self.names), batch.num_rows - start))
        self._rows += batch.num_rows
        return pieces

    def _close(self) -> None:
        name = self._open.hexdigest()
        repeat = self._seen[name]
        self._seen[name] += 1
        if repeat:
            name = repeated(name, repeat)
        self.names.append(name)
        self._open = ContentHash(self._schema, self._salt)

    def finish(self, cuts: Sequence[Cut]) -> None:
        """Close the last shard."""
        if len(self.names) < len(cuts):
            self._close()
