"""What a job takes of a source: some columns, the rows of a condition, the first of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from airflow_llm_provider.dataset.arrow.sizes import BATCH_BYTES
from airflow_llm_provider.dataset.sources.source import BATCH_ROWS
from airflow_llm_provider.dataset.sources.where.condition import columns_of
from airflow_llm_provider.dataset.sources.where.row_filter import RowFilter
from airflow_llm_provider.dataset.sources.where.syntax import parse
from airflow_llm_provider.errors import LLMInputError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    import pyarrow.compute as pc

    from airflow_llm_provider.dataset.files.layout import Layout

_MOST_NAMED = 50


class Rows(Protocol):
    """A whole source: files, or a table in memory."""

    schema: pa.Schema
    notes: list[str]
    is_blank: bool
    files_skipped: int

    def batches(
        self,
        batch_rows: int = BATCH_ROWS,
        *,
        columns: Collection[str] | None = None,
        row_filter: RowFilter | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield all rows in order, perhaps without those that the filter cannot take."""
        ...

    def snapshot(self) -> list[dict[str, Any]]:
        """Say what was read."""
        ...

    def check_apart(self, layout: Layout) -> None:
        """Raise when the source and the destination lie inside each other."""
        ...

    def check_unchanged(self) -> None:
        """Raise when what was read has changed meanwhile."""
        ...


class Selection:
    """Rows and columns of a source. Rows are numbered after the condition, from 0.

    :param rows: the whole source.
    :param prompt: columns that the prompt needs, whether they are in the output or not.
    :param columns: columns that the output carries, in this order; ``None``: all.
    :param where: which rows are taken: a condition as text, or an Arrow expression; ``None``: all.
    :param limit: only so many of them, from the first; ``None``: all.
    :raises LLMInputError: when a column is not there, or the condition does not fit the source.
    """

    def __init__(
        self,
        rows: Rows,
        *,
        prompt: Collection[str] = (),
        columns: Sequence[str] | None = None,
        where: str | pc.Expression | None = None,
        limit: int | None = None,
    ) -> None:
        self._rows = rows
        self._limit = limit
        self._filter = None if where is None or rows.is_blank else RowFilter.of(where, rows.schema)
        self._where = None if where is None else str(where)
        self._left_out = 0
        #: Names of the columns that the output carries; ``None``: all of :attr:`schema`.
        self.carried = None if columns is None else check_columns(columns, rows.schema.names)
        self.notes: list[str] = rows.notes
        #: Columns of the shards: those of the output, then what only the prompt needs.
        self.schema: pa.Schema = rows.schema
        if self.carried is not None:
            others = [name for name in rows.schema.names if name in prompt and name not in self.carried]
            self.schema = pa.schema(rows.schema.field(name) for name in (*self.carried, *others))

    @property
    def report(self) -> dict[str, Any]:
        """What was taken, and how much was left out by what was read so far.

        ``rows_left_out`` does not count the rows of ``files_skipped``, nor those behind the limit: they were not read.
        """
        return {
            "columns": None if self.carried is None else list(self.carried),
            "where": self._where,
            "limit": self._limit,
            "rows_left_out": self._left_out,
            "files_skipped": self._rows.files_skipped,
        }

    def batches(self, batch_rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """Yield the rows in order, in batches bounded by rows and by bytes."""
        left = self._limit
        if left is None:
            yield from self._taken(batch_rows)
            return
        for batch in self._taken(min(batch_rows, left) if self._filter is None else batch_rows):
            yield batch.slice(0, left)
            left -= min(left, batch.num_rows)
            if not left:
                return

    def _taken(self, batch_rows: int) -> Iterator[pa.RecordBatch]:
        self._left_out = 0
        if self._filter is None:
            for batch in self._rows.batches(batch_rows, columns=self.schema.names):
                yield batch.select(self.schema.names)
            return
        needed = self._filter.columns.union(self.schema.names)
        held: list[pa.RecordBatch] = []
        for batch in self._rows.batches(batch_rows, columns=needed, row_filter=self._filter):
            taken = self._filter.take(batch).select(self.schema.names)
            self._left_out += batch.num_rows - taken.num_rows
            if taken.num_rows == batch.num_rows and not held:
                yield taken
            elif taken.num_rows:
                held.append(taken)
                enough = sum(part.num_rows for part in held) >= (self._limit or batch_rows)
                if enough or sum(part.nbytes for part in held) >= BATCH_BYTES:
                    yield from _joined(held, batch_rows)
                    held = []
        if held:
            yield from _joined(held, batch_rows)

    def snapshot(self) -> list[dict[str, Any]]:
        """Say what was read."""
        return self._rows.snapshot()

    def check_apart(self, layout: Layout) -> None:
        """Make sure that source and destination do not lie inside each other."""
        self._rows.check_apart(layout)

    def check_unchanged(self) -> None:
        """Make sure that what was read is still the same."""
        self._rows.check_unchanged()


def check_columns(columns: Sequence[str], there: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of the output.

    :raises LLMInputError: naming those that are not in the source, and what is.
    """
    unknown = [name for name in columns if name not in there]
    if unknown:
        named = ", ".join(map(repr, there[:_MOST_NAMED])) or "none"
        more = f" and {len(there) - _MOST_NAMED} more" if len(there) > _MOST_NAMED else ""
        raise LLMInputError(
            f"columns names {', '.join(map(repr, unknown))}, which the source does not have; its columns are {named}{more}"
        )
    return tuple(columns)


def columns_named(columns: Sequence[str] | None, where: str | pc.Expression | None) -> set[str]:
    """Return the columns that a user names, for a source that has none of its own."""
    named = set(columns or ())
    if isinstance(where, str):
        named.update(column.path[0] for column in columns_of(parse(where)))
    return named


def _joined(batches: list[pa.RecordBatch], batch_rows: int) -> Iterator[pa.RecordBatch]:
    if len(batches) == 1:
        yield batches[0]
        return
    yield from pa.Table.from_batches(batches).combine_chunks().to_batches(max_chunksize=batch_rows)
