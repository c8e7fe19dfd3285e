"""Shard files: the input rows of one shard, with what the split found out about each."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_llm_provider.dataset.arrow.content_hash import ContentHash
from airflow_llm_provider.dataset.arrow.rows import iter_rows
from airflow_llm_provider.dataset.files.storage import BrokenFileError, MissingFileError, Storage
from airflow_llm_provider.dataset.files.urls import public_uri
from airflow_llm_provider.errors import LLMStateError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from airflow_llm_provider.dataset.files.layout import Layout
    from airflow_llm_provider.dataset.plans.prepared import PreparedRows
    from airflow_llm_provider.dataset.plans.shard_entry import ShardEntry

#: Columns that the split adds to a shard, after the input's.
SHARD_COLUMNS: tuple[pa.Field, ...] = (
    pa.field("_llm_row", pa.int64()),
    pa.field("_llm_tokens", pa.int32()),
    pa.field("_llm_fingerprint", pa.binary(16)),
    pa.field("_llm_status", pa.string()),
    pa.field("_llm_error", pa.string()),
)
#: Column that a shard has besides when a function made the prompts: its messages, as JSON.
MESSAGES = pa.field("_llm_messages", pa.string())
_READ_ROWS = 4096
_KEY_ROWS = 1 << 16


@dataclass(frozen=True, kw_only=True)
class ShardKeys:
    """What the split found out about each row, in row order.

    :param fingerprints: hash of the request; ``None``: the row is not sent.
    :param occurrences: 0, 1, 2, … among identical requests of the shard.
    :param tokens: prompt tokens.
    :param statuses: how a row that is not sent ends.
    :param errors: why it is not sent.
    """

    fingerprints: list[bytes | None]
    occurrences: list[int]
    tokens: list[int]
    statuses: list[str | None]
    errors: list[str | None]

    def __len__(self) -> int:
        return len(self.fingerprints)


class ShardFile:
    """An open shard.

    :param storage: where it lies.
    :param name: its name there.
    :param file: the open file.
    :param row_groups: the row groups that are the shard, the first and how many; ``None``: all.
    """

    def __init__(
        self, storage: Storage, name: str, file: pq.ParquetFile, row_groups: tuple[int, int] | None = None
    ) -> None:
        self._storage = storage
        self._name = name
        self._file = file
        first, count = row_groups or (0, file.num_row_groups)
        self._groups = range(first, first + count)
        if self._groups.stop > file.num_row_groups:
            raise BrokenFileError(
                f"{storage.uri(name)} has {file.num_row_groups} row groups where the plan says {self._groups.stop}"
            )
        schema = file.schema_arrow
        own = {field.name for field in SHARD_COLUMNS}
        if not own <= set(schema.names):
            raise BrokenFileError(
                f"{storage.uri(name)} is no shard: it lacks {sorted(own - set(schema.names))}"
            )
        #: Whether the messages of each row are in the shard, as a function made them.
        self.has_messages = MESSAGES.name in schema.names
        #: Columns of the input, without ours.
        self.input_schema: pa.Schema = pa.schema(
            [field for field in schema if field.name not in own | {MESSAGES.name}]
        )
        #: Rows of the shard.
        self.rows: int = sum(file.metadata.row_group(group).num_rows for group in self._groups)

    def batches(
        self, batch_rows: int = _READ_ROWS, *, columns: Iterable[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the input rows in order, in pieces.

        :param columns: only these; ``None``: all columns of the input.
        """
        names = list(self.input_schema.names if columns is None else columns)
        yield from self._read(batch_rows, names)

    def _read(self, batch_rows: int, names: list[str]) -> Iterator[pa.RecordBatch]:
        # One group at a time: Arrow would fill a batch of long documents from many groups. And without threads: shards
        # are small, and many tasks share a machine.
        for group in self._groups:
            batches = self._file.iter_batches(
                batch_size=batch_rows, row_groups=[group], columns=names, use_threads=False
            )
            while True:
                with self._storage.reading(self._name):
                    batch = next(batches, None)
                if batch is None:
                    break
                # Arrow returns columns in the order of the file.
                yield batch.select(names)

    @property
    def uri(self) -> str:
        """Where it lies, fit for messages."""
        return public_uri(self._storage.uri(self._name))

    def content_hash(self, salt: bytes) -> str:
        """Hash the rows, as the split did to name the shard.

        :param salt: what else is in its name.
        """
        fields = [*self.input_schema, *([MESSAGES] if self.has_messages else [])]
        content = ContentHash(pa.schema(fields), salt)
        for batch in self._read(_READ_ROWS, [field.name for field in fields]):
            content.update(batch)
        return content.hexdigest()

    def iter_rows(self, columns: Iterable[str]) -> Iterator[dict[str, Any]]:
        """Yield some columns as one dict per row, in order."""
        names = list(columns)
        if not names:
            yield from ({} for _ in range(self.rows))
            return
        yield from iter_rows(self.batches(columns=names), names)

    def messages(self) -> Iterator[str | None]:
        """Yield the messages of each row, as JSON; ``None``: the row is not sent."""
        for batch in self._read(_READ_ROWS, [MESSAGES.name]):
            yield from batch.column(0).to_pylist()

    def fingerprints(self) -> pa.ChunkedArray:
        """Read the hash of each row's request, null for a row that is not sent."""
        names = ["_llm_fingerprint"]
        return pa.chunked_array(
            [batch.column(0) for batch in self._read(_KEY_ROWS, names)], type=SHARD_COLUMNS[2].type
        )

    def row_numbers(self) -> NDArray[np.int64]:
        """Read the number of each row in the input, or in its group of files."""
        names = ["_llm_row"]
        parts = [np.asarray(batch.column(0), dtype=np.int64) for batch in self._read(_KEY_ROWS, names)]
        return np.concatenate([np.empty(0, dtype=np.int64), *parts])

    @cached_property
    def keys(self) -> ShardKeys:
        """What the split found out about each row."""
        names = [field.name for field in SHARD_COLUMNS[1:]]
        table = pa.Table.from_batches(list(self._read(_KEY_ROWS, names)), pa.schema(SHARD_COLUMNS[1:]))
        tokens, fingerprints, statuses, errors = (column.to_pylist() for column in table.columns)
        return ShardKeys(
            fingerprints=fingerprints,
            occurrences=occurrences_of(fingerprints),
            tokens=tokens,
            statuses=statuses,
            errors=errors,
        )


def shard_arrays(prepared: PreparedRows, first_row: int, rows: int) -> list[pa.Array]:
    """Return the columns that a shard has after the input's."""
    statuses = [None if status is None else str(status) for status in prepared.statuses]
    columns = (prepared.tokens, prepared.fingerprints, statuses, prepared.errors)
    if any(len(column) != rows for column in columns):
        raise ValueError(f"prepared {[len(column) for column in columns]} values for {rows} rows")
    types = [field.type for field in SHARD_COLUMNS]
    numbers = pa.array(np.arange(first_row, first_row + rows, dtype=np.int64))
    arrays = [numbers, *(pa.array(values, kind) for values, kind in zip(columns, types[1:], strict=True))]
    return arrays if prepared.messages is None else [*arrays, pa.array(prepared.messages, MESSAGES.type)]


def occurrences_of(fingerprints: Sequence[bytes | None]) -> list[int]:
    """Count the identical requests before each row."""
    if len(set(fingerprints)) == len(fingerprints):  # the usual case, in a tenth of the time
        return [0] * len(fingerprints)
    seen: dict[bytes, int] = {}
    occurrences = []
    for fingerprint in fingerprints:
        if fingerprint is None:
            occurrences.append(0)
            continue
        occurrence = seen.get(fingerprint, 0)
        seen[fingerprint] = occurrence + 1
        occurrences.append(occurrence)
    return occurrences


@contextmanager
def open_shard(layout: Layout, entry: ShardEntry) -> Iterator[ShardFile]:
    """Open a shard for reading.

    :raises LLMStateError: when it is missing, damaged or cannot be read.
    """
    name = layout.shard(entry.shard_id) if entry.file is None else layout.counted(entry.file)
    remedy = "clear the split and everything after it; answers that are already there are kept"
    with ExitStack() as stack:
        try:
            file = stack.enter_context(layout.storage.open_parquet(name))
            shard = ShardFile(layout.storage, name, file, entry.row_groups)
        except (MissingFileError, BrokenFileError) as error:
            raise LLMStateError(f"{error}: {remedy}") from error
        yield shard
