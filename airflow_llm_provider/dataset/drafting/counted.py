"""One group of input files, counted and cut by itself: its rows in one file, and what was found out beside it."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from airflow_llm_provider.dataset.arrow.row_groups import RowGroupWriter
from airflow_llm_provider.dataset.files.urls import public_uri
from airflow_llm_provider.dataset.plans.shard_writer import GROUP_BYTES, GROUP_ROWS
from airflow_llm_provider.errors import LLMStateError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_llm_provider.dataset.drafting.draft import Draft
    from airflow_llm_provider.dataset.files.layout import Layout
    from airflow_llm_provider.dataset.plans.partitions import Values


@dataclass(frozen=True, kw_only=True, slots=True)
class CountedShard:
    """One shard of a group.

    :param shard_id: hash of the spec, the schema and the rows, in order.
    :param tokens: prompt tokens of the rows that will be sent.
    :param first_row: number of its first row, as in the plan's entry, counted from the first of the group.
    :param groups: row groups of the file that hold its rows, after those of the shard before.
    """

    shard_id: str
    rows: int
    tokens: int
    first_row: int
    groups: int


@dataclass(frozen=True, kw_only=True)
class Counted:
    """What the count of one group of input files found out.

    :param rows: rows of the files.
    :param requests: rows that will be sent.
    :param tokens: prompt tokens of these.
    :param size: bytes of the rows.
    :param rows_by_status: rows that will not be sent, by their status.
    :param first_error: why the first of these is not sent.
    :param shard_tokens: token budget of the shards.
    :param asked_shards: shards that there would be under the budget that was asked for.
    :param rows_left_out: rows that a condition left out.
    :param files_skipped: files of which it can take none.
    :param partitions: values of the partitions that the columns of the input make.
    :param notes: what a person should know about the counting.
    """

    rows: int
    requests: int
    tokens: int
    size: int
    rows_by_status: Mapping[str, int]
    first_error: str | None
    shard_tokens: int
    asked_shards: int
    rows_left_out: int
    files_skipped: int
    partitions: tuple[Values, ...]
    notes: tuple[str, ...]
    shards: tuple[CountedShard, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Rebuild it."""
        shards = tuple(CountedShard(**shard) for shard in value["shards"])
        partitions = tuple(map(tuple, value["partitions"]))
        return cls(**{**value, "notes": tuple(value["notes"]), "partitions": partitions, "shards": shards})


def write_counted(
    layout: Layout, name: str, draft: Draft, *, notes: tuple[str, ...], report: Mapping[str, Any]
) -> Counted:
    """Write the rows of a draft in row groups none of which holds rows of two shards, then what was found out.

    :param name: of the group.
    :param notes: what a person should know about the counting.
    :param report: what was taken of the files, and what was left out.
    """
    shards = []
    with (
        layout.storage.create(layout.counted(name)) as file,
        RowGroupWriter(
            file, draft.schema, rows=GROUP_ROWS, size=GROUP_BYTES, compression="snappy", dictionary=[]
        ) as writer,
    ):
        for shard_id, cut, pieces in zip(draft.names, draft.shards, draft.pieces(), strict=True):
            begun = writer.groups
            for batch in pieces:
                writer.write(batch)
            writer.flush()
            shards.append(
                CountedShard(
                    shard_id=shard_id,
                    rows=cut.rows,
                    tokens=cut.tokens,
                    first_row=draft.first_row(cut),
                    groups=writer.groups - begun,
                )
            )
    counted = Counted(
        rows=draft.rows,
        requests=draft.requests,
        tokens=draft.tokens,
        size=draft.size,
        rows_by_status=dict(draft.rows_by_status),
        first_error=draft.first_error,
        shard_tokens=draft.settings.shard_tokens,
        asked_shards=draft.asked_shards,
        rows_left_out=report["rows_left_out"],
        files_skipped=report["files_skipped"],
        partitions=tuple(draft.partitions),
        notes=notes,
        shards=tuple(shards),
    )
    layout.storage.write_bytes(layout.count(name), json.dumps(counted.to_json()).encode())
    return counted


def read_counted(layout: Layout, name: str) -> Counted | None:
    """Read what was found out about a group; ``None`` only when it is not counted.

    :raises LLMStateError: when it cannot be read, or is damaged.
    """
    data = layout.storage.read_bytes(layout.count(name))
    if data is None:
        return None
    try:
        return Counted.from_json(json.loads(data))
    except (ValueError, TypeError, KeyError) as error:
        raise LLMStateError(
            f"{public_uri(layout.uri(layout.count(name)))} is damaged ({type(error).__name__}): clear the task that "
            "counts these files and everything after it"
        ) from error


def forget_counted(layout: Layout, name: str) -> None:
    """Delete what a count has written."""
    layout.storage.delete(layout.count(name))
    layout.storage.delete(layout.counted(name))
