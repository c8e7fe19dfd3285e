"""What meets in a split: rows from a source, and what its caller found out about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from airflow_llm_provider.dataset.files.layout import Layout


class RowSource(Protocol):
    """What the split needs of a source.

    :param schema: columns of the shards.
    :param carried: names of those that the output carries; ``None``: all.
    """

    schema: pa.Schema
    carried: tuple[str, ...] | None
    notes: list[str]

    @property
    def report(self) -> dict[str, Any]:
        """What was taken of the source, and how much was left out."""
        ...

    def batches(self, batch_rows: int) -> Iterator[pa.RecordBatch]:
        """Yield all rows in order."""
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


@dataclass(frozen=True, kw_only=True)
class PreparedRows:
    """What the caller found out about the rows of one batch, in row order.

    :param tokens: prompt tokens.
    :param fingerprints: hash of the request; ``None``: the row is not sent.
    :param statuses: how a row that is not sent ends; ``None`` for the others.
    :param errors: why it is not sent, for the output's error column.
    :param messages: what a function said to ask, as JSON; ``None``: a template is rendered again when the row is sent.
    """

    tokens: Sequence[int]
    fingerprints: Sequence[bytes | None]
    statuses: Sequence[str | None]
    errors: Sequence[str | None]
    messages: Sequence[str | None] | None = None


#: Prepares the rows of one batch, or returns what does the rest of it: that is called in another thread, in the order
#: of the batches, while the next batch is prepared.
Prepare = Callable[["pa.RecordBatch"], PreparedRows | Callable[[], PreparedRows]]
