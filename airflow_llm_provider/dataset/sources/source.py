"""A dataset as it lies on storage: files of one format, read in order as batches of one schema."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_llm_provider.dataset.files.destination import check_apart
from airflow_llm_provider.dataset.files.urls import Resolver, public_uri, resolve
from airflow_llm_provider.dataset.sources.formats import Reader, ReadOptions, format_of, open_reader
from airflow_llm_provider.dataset.sources.listing import Found, SourceFile, find_files, look_again
from airflow_llm_provider.dataset.sources.readers.unify import batch_of
from airflow_llm_provider.errors import LLMInputError, LLMStateError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from airflow_llm_provider.dataset.files.layout import Layout
    from airflow_llm_provider.dataset.sources.where.row_filter import RowFilter

BATCH_ROWS = 4096


@dataclass(frozen=True, kw_only=True)
class Known:
    """What an earlier look at a source found, so that some of its files are read as all of them would be.

    :param root: what :class:`~airflow_llm_provider.dataset.sources.listing.Found` calls root.
    :param files: the files to read.
    :param format: format of the files.
    :param facts: what the reader of all files had found out.
    """

    root: str
    files: tuple[SourceFile, ...]
    format: str
    facts: Mapping[str, Any]


class Source:
    """A dataset on storage. Get one from :func:`open_source`.

    :param url: what the user gave.
    :param format: one of :data:`~airflow_llm_provider.dataset.sources.formats.FORMATS`.
    :param found: the input files, in the order of the rows.
    """

    def __init__(
        self,
        *,
        url: str,
        resolver: Resolver,
        format: str,  # noqa: A002 -- the field's word
        found: Found,
        reader: Reader,
        columns_if_empty: Sequence[str],
        partial: bool = False,
    ) -> None:
        self.url = url
        self._partial = partial
        self.format = format
        self.files = found.files
        self._found = found
        self._resolver = resolver
        self._reader = reader
        self._partitions = _partition_names(found.files, reader.schema)
        #: Whether the files have 0 bytes, so that nothing names their columns.
        self.is_blank = not len(reader.schema)
        #: Files that the last reading passed over, since no row of them could be wanted.
        self.files_skipped = 0
        #: What a person should know, to be logged once.
        self.notes: list[str] = reader.notes
        self.schema: pa.Schema = self._schema(columns_if_empty)

    def _schema(self, columns_if_empty: Sequence[str]) -> pa.Schema:
        if not self.is_blank:
            fields = list(self._reader.schema)
        elif columns_if_empty:
            fields = [
                pa.field(name, pa.string()) for name in columns_if_empty if name not in self._partitions
            ]
            self.notes.append(f"{public_uri(self.url)} is empty: 0 rows")
        else:
            raise LLMInputError(f"{public_uri(self.url)} is empty: nothing names its columns")
        return pa.schema([*fields, *(pa.field(name, pa.string()) for name in self._partitions)])

    def batches(
        self,
        batch_rows: int = BATCH_ROWS,
        *,
        columns: Collection[str] | None = None,
        row_filter: RowFilter | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows in order, in batches bounded by rows and by bytes.

        :param columns: only these, in the order of the schema; ``None``: all.
        :param row_filter: files are passed over of which it can take no row. It is not applied to rows.
        """
        wanted = pa.schema(field for field in self.schema if columns is None or field.name in columns)
        own = pa.schema(field for field in wanted if field.name in self._reader.schema.names)
        files = self._files_with(row_filter)
        self.files_skipped = len(self.files) - len(files)
        for file in files:
            values = dict(file.partitions)
            for batch in self._reader.batches(file, batch_rows, own):
                if self.is_blank and batch.num_rows:
                    raise LLMInputError(
                        f"{public_uri(file.uri)} has {batch.num_rows:,} rows or more, and no column: write its columns, "
                        "or leave it out"
                    )
                partitions = [
                    pa.array([values[name]] * batch.num_rows, pa.string())
                    for name in self._partitions
                    if name in wanted.names
                ]
                yield batch_of([*batch.columns, *partitions], wanted, batch.num_rows)

    def _files_with(self, row_filter: RowFilter | None) -> list[SourceFile]:
        if row_filter is None:
            return list(self.files)
        known = [
            {name: value for name, value in file.partitions if name in self._partitions}
            for file in self.files
        ]
        return [file for file, may in zip(self.files, row_filter.may_match(known), strict=True) if may]

    @property
    def known(self) -> Known:
        """What was found, to read some of the files later."""
        return Known(root=self._found.root, files=self.files, format=self.format, facts=self._reader.facts)

    def snapshot(self) -> list[dict[str, Any]]:
        """Say which files, of which size and version, there were."""
        return [
            {"uri": public_uri(file.uri), "size": file.size, "version": file.version} for file in self.files
        ]

    def check_apart(self, layout: Layout) -> None:
        """Make sure that the destination does not lie among the files of the source, nor the other way round.

        :raises LLMInputError: when it does: the next run would read this one's output.
        """
        found = self._found
        check_apart(layout, found.fs, (found.root, *found.linked), (file.path for file in found.files))

    def check_unchanged(self) -> None:
        """Make sure that the files are still those that were opened.

        :raises LLMStateError: naming one that is not.
        :raises LLMInputError: the same, of files that were listed earlier: to read them again would not help.
        """
        if self._partial:
            self.check_listed(look_again(self._found))
            return
        try:
            now = find_files(self.url, self._resolver).files
        except LLMInputError:
            now = ()
        changed = set(map(_key, now)) ^ set(map(_key, self.files))
        if changed:
            raise LLMStateError(
                f"the source {public_uri(self.url)} changed while it was read ({min(changed)[0]}): run again when it is "
                "complete"
            )

    def check_listed(self, now: tuple[SourceFile, ...]) -> None:
        """Compare with the files as they are now.

        :raises LLMInputError: naming one that is another.
        """
        changed = set(map(_key, now)) ^ set(map(_key, self.files))
        if changed:
            raise LLMInputError(
                f"the source {public_uri(self.url)} changed since it was listed ({min(changed)[0]}): list it again when it "
                "is complete, in Airflow by clearing the task that lists it and everything after it"
            )


def open_source(
    url: str,
    *,
    resolver: Resolver = resolve,
    options: ReadOptions | None = None,
    columns_if_empty: Sequence[str] = (),
    known: Known | None = None,
) -> Source:
    """Open a dataset.

    :param url: one file, a folder (with all folders below it) or a glob. Names that begin with ``_`` or ``.`` are
        passed over.
    :param resolver: finds the filesystem of a URL.
    :param options: how the files are read.
    :param columns_if_empty: names of the columns, as text, when all files have 0 bytes, so that nothing names them.
    :param known: read only these files, of those that ``url`` names; ``None``: find out.
    :raises LLMInputError: when there are no files, or they cannot be one dataset.
    :raises LLMStateError: when they cannot be read.
    """
    options = options or ReadOptions()
    if known is None:
        found = find_files(url, resolver)
        kind, facts = options.format or format_of(found.files, url), None
    else:
        found = Found(fs=resolver(url)[0], root=known.root, files=known.files)
        kind, facts = known.format, known.facts
    reader = open_reader(found, kind, options, facts)
    return Source(
        url=url,
        resolver=resolver,
        format=kind,
        found=found,
        reader=reader,
        columns_if_empty=columns_if_empty,
        partial=known is not None,
    )


def _partition_names(files: tuple[SourceFile, ...], schema: pa.Schema) -> list[str]:
    """Return the columns that the names of the folders add; a file's own column of that name wins."""
    first = [name for name, _ in files[0].partitions]
    for file in files:
        names = [name for name, _ in file.partitions]
        if names != first or len(set(names)) < len(names):
            raise LLMInputError(
                f"the folders of {public_uri(files[0].uri)} and {public_uri(file.uri)} name the columns {first} and "
                f"{names}: give a source whose folders all name the same ones, each once"
            )
    return [name for name in first if name not in schema.names]


def _key(file: SourceFile) -> tuple[str, int, str]:
    shown = dataclasses.replace(file, uri=public_uri(file.uri))
    return shown.uri, shown.size, shown.version
