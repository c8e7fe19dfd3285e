"""Output parts: written aside, then put in place together."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING
from uuid import uuid4

import orjson

from airflow_llm_provider.dataset.arrow.row_groups import RowGroupWriter
from airflow_llm_provider.dataset.files.destination import folders_above, own_parts, read_json
from airflow_llm_provider.dataset.files.layout import INTENT, MANIFEST, REJECTS, STAGING, Layout
from airflow_llm_provider.dataset.files.urls import public_uri, reason
from airflow_llm_provider.errors import LLMStateError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa


@dataclass(frozen=True, kw_only=True, slots=True)
class PartFile:
    """One output file.

    :param name: its name in the destination.
    :param partition: the columns that its folder names, with their values as text.
    """

    name: str
    rows: int
    size: int
    partition: Mapping[str, str | None] = field(default_factory=dict)


class PartWriter:
    """Writes rows into part files of a steady size.

    They are written below ``_llm/staging``, where no reader sees them. :meth:`publish` then puts all of them in place:
    the old manifest goes first, the parts are renamed one after the other, and the caller writes the new manifest
    last, by :meth:`seal`. On a local disk the renames take microseconds; on an object store each is a copy on the server. A reader
    that lists the folder meanwhile may see parts of both outputs, one that goes by the manifest never does.

    :param schema: the one schema of all parts.
    :param rows_per_group: most rows of a row group.
    :param bytes_per_file: size on storage beyond which the next part begins.
    """

    def __init__(
        self, layout: Layout, schema: pa.Schema, *, rows_per_group: int, bytes_per_file: int
    ) -> None:
        self._layout = layout
        self._schema = schema
        self._rows_per_group = rows_per_group
        self._bytes_per_file = bytes_per_file
        self._token = uuid4().hex
        self._folder = f"{STAGING}/{self._token}"
        self._staged: list[PartFile] = []
        self._subfolder = ""
        self._partition: Mapping[str, str | None] = {}
        self._open = ExitStack()
        self._file: IO[bytes] | None = None
        self._writer: RowGroupWriter | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Take the next rows."""
        writer = self._writer or self._begin()
        with self._writing():
            writer.write(batch)
        if self._file is not None and self._file.tell() >= self._bytes_per_file:
            self._end()

    def begin_folder(self, folder: str, partition: Mapping[str, str | None]) -> None:
        """Let the next rows go into another folder of the output.

        :param partition: the columns that it names, with their values as text.
        """
        self._end()
        self._subfolder, self._partition = f"{folder}/", partition

    def _next_name(self) -> str:
        # Each number once, so that no file of one folder has the name of another's.
        return f"{self._subfolder}{self._layout.part(len(self._staged))}"

    def _begin(self) -> RowGroupWriter:
        name = self._next_name()
        staged = self._layout.storage.create(f"{self._folder}/{name}", staged=True)
        self._file = self._open.enter_context(staged)
        self._writer = RowGroupWriter(self._file, self._schema, rows=self._rows_per_group)
        return self._writer

    def _end(self) -> None:
        if self._writer is None or self._file is None:
            return
        with self._writing():
            self._writer.close()
        part = PartFile(
            name=self._next_name(),
            rows=self._writer.rows,
            size=self._file.tell(),
            partition=self._partition,
        )
        self._writer = self._file = None
        self._open.close()
        self._staged.append(part)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            uri = public_uri(self._layout.storage.uri(self._next_name()))
            raise LLMStateError(f"{uri} could not be written: {reason(error)}") from error

    def finish(self) -> tuple[PartFile, ...]:
        """End the last part, and return all: at least one, so that the output always has its schema."""
        if self._writer is None and not self._staged:
            self._begin()
        self._end()
        return tuple(self._staged)

    def publish(self, rejects: str | None) -> None:
        """Put the parts, and the file of rejected rows, in the place of the previous output.

        :param rejects: name of the staged file of rejected rows; ``None``: there are none.
        :raises LLMStateError: when another merge has begun to replace the output.
        """
        storage = self._layout.storage
        new = [part.name for part in self._staged]
        old = self._take_over(own_parts(self._layout), new)
        storage.delete(MANIFEST)
        for name in new:
            self._check_alone()
            storage.move(f"{self._folder}/{name}", name)
        self._check_alone()
        for name in sorted(old - set(new)):
            storage.delete(name)
        for folder in sorted(folders_above(old) - folders_above(new), reverse=True):
            storage.remove_folder(folder)
        if rejects is not None:
            storage.move(rejects, REJECTS)
        else:
            storage.delete(REJECTS)

    def _take_over(self, known: set[str], new: list[str]) -> set[str]:
        """Write down whose the place is, and which files are ours and not a user's; return the old ones."""
        # Those in folders of partitions are not looked up, which would take a call for each folder.
        there = self._layout.storage.files("")
        old = {name for name in known if "/" in name or name in there}
        intent = {"files": sorted(old.union(new)), "merge": self._token}
        self._layout.storage.write_bytes(INTENT, orjson.dumps(intent))
        # Another merge may have ended between the last look and now; from now on it would notice.
        known = own_parts(self._layout)
        return old if known <= old.union(new) else self._take_over(known, new)

    def seal(self, manifest: bytes) -> None:
        """Write the manifest, if the parts in place are all ours.

        :raises LLMStateError: when another merge has begun to replace the output.
        """
        storage = self._layout.storage
        self._check_alone()
        if any(storage.size(part.name) != part.size for part in self._staged):
            raise self._overtaken()
        storage.write_bytes(MANIFEST, manifest)
        self._check_alone()

    def _check_alone(self) -> None:
        if (read_json(self._layout, INTENT) or {}).get("merge") == self._token:
            return
        # The other may be through already, and our last file lie in the place of one of its own; or the manifest is ours,
        # and the parts no longer are.
        self._layout.storage.delete(MANIFEST)
        raise self._overtaken()

    def _overtaken(self) -> LLMStateError:
        return LLMStateError(
            f"another run is replacing the output of {public_uri(self._layout.destination)}: run merge again when it is "
            "over, and let only one run at a time work on a destination"
        )

    def rejects_name(self) -> str:
        """Return where the file of rejected rows is staged."""
        return f"{self._folder}/{REJECTS}"

    def discard(self) -> None:
        """Delete whatever is still staged."""
        if self._writer is not None:
            self._writer.discard()
        with suppress(_UnfinishedError), self._open:
            if self._file is not None:
                raise _UnfinishedError
        # What stays behind is hidden from readers, and must not hide why the merge failed.
        with suppress(LLMStateError):
            self._layout.storage.delete_folder(self._folder)
            self._layout.storage.remove_folder(STAGING)


class _UnfinishedError(Exception):
    """Ends a part that is not whole, so that it never appears."""
