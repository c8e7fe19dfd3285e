"""The journal of a shard: every answer on storage as it arrives, each line for itself.

A line is a checksum and a JSON object. A torn or damaged line costs only itself. Every writer has files of its own, so
two tries of a shard at the same time never mix.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self
from uuid import uuid4

from airflow_llm_provider.dataset.outcomes.journal_line import read_line, write_line
from airflow_llm_provider.dataset.outcomes.journal_sink import AppendedFile, GatheredParts, Sink
from airflow_llm_provider.dataset.outcomes.record import cost_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from airflow_llm_provider.dataset.files.layout import Layout
    from airflow_llm_provider.dataset.outcomes.record import Record
    from airflow_llm_provider.engine.budget.spent import Spent


@dataclass(frozen=True, kw_only=True)
class JournalContent:
    """What the journal of a shard holds.

    :param records: every whole record, file by file.
    :param writers: the name of each record's writer.
    :param corrupt: lines that were torn or damaged.
    :param files: names of the files that were read.
    """

    records: list[Record]
    writers: list[str]
    corrupt: int
    files: tuple[str, ...]

    def spent(self, *, unsaid: Callable[[Record], Spent]) -> dict[str, Spent]:
        """Return what the answers of each writer have cost, by its name.

        :param unsaid: what an answer counts of which the endpoint did not say what it took.
        """
        found: dict[str, list[Record]] = {}
        for writer, record in zip(self.writers, self.records, strict=True):
            found.setdefault(writer, []).append(record)
        return {writer: cost_of(records, unsaid=unsaid) for writer, records in found.items()}


def read_journal(layout: Layout, shard_id: str) -> JournalContent:
    """Read whatever the tries of a shard have written so far.

    :raises LLMStateError: when the storage cannot be read.
    """
    records: list[Record] = []
    writers: list[str] = []
    corrupt = 0
    files = [name for name in layout.storage.files(layout.journal(shard_id)) if name.endswith(".jsonl")]
    for name in files:
        begun = len(records)
        for line in (layout.storage.read_bytes(name) or b"").split(b"\n"):
            record = read_line(line) if line else None
            if record is not None:
                records.append(record)
            elif line:
                corrupt += 1
        writers += [_writer(name)] * (len(records) - begun)
    return JournalContent(records=records, writers=writers, corrupt=corrupt, files=tuple(files))


def _writer(file: str) -> str:
    """Return the name of the writer of a journal file, or of a part of one."""
    return file.rsplit("/", 1)[-1].removesuffix(".jsonl").partition("-")[0]


def remove_journal(layout: Layout, shard_id: str, files: Sequence[str]) -> None:
    """Delete journal files whose records are in the results now; another writer's stay."""
    for name in files:
        layout.storage.delete(name)
    layout.storage.remove_folder(layout.journal(shard_id))


class JournalWriter:
    """Writes the answers of one try of a shard.

    On a local disk each record is one ``write`` to an append-only file: killing the process loses none that was
    written; they are synced to the disk every ``sync_seconds``. On an object store a thread gathers records and puts
    them as small files every ``part_seconds``: killing the process loses at most that much.

    :param monotonic: clock of the grouped syncs.
    """

    def __init__(
        self,
        layout: Layout,
        shard_id: str,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        sync_seconds: float = 1.0,
        part_seconds: float = 1.0,
    ) -> None:
        #: Tells this writer's records from those of others.
        self.name = uuid4().hex
        begin = f"{layout.journal(shard_id)}/{self.name}"
        self._sink: Sink
        if layout.storage.local:
            self._sink = AppendedFile(layout, f"{begin}.jsonl", monotonic, sync_seconds)
        else:
            self._sink = GatheredParts(layout, begin, part_seconds)

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the files written so far."""
        return tuple(self._sink.files)

    def append(self, record: Record) -> None:
        """Write one record.

        :raises LLMStateError: when it, or an earlier one, could not be written.
        """
        self._sink.write(write_line(record))

    def flush(self) -> None:
        """Wait until everything is on storage."""
        self._sink.flush()

    def close(self) -> None:
        """Flush, and let go of the files."""
        self._sink.close()

    def discard(self) -> None:
        """Let go of the files without a flush: every record is in the results now."""
        self._sink.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
