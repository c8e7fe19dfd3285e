"""A dataset as it lies on storage: files of one format, read in order as batches of one schema."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from airflow_llm_provider.dataset.destination import check_apart
from airflow_llm_provider.dataset.listing import Found, SourceFile, find_files, look_again
from airflow_llm_provider.dataset.readers.csv_text import CsvReader
from airflow_llm_provider.dataset.readers.files import Files
from airflow_llm_provider.dataset.readers.json_lines import JsonLinesReader
from airflow_llm_provider.dataset.readers.parquet import ParquetReader
from airflow_llm_provider.dataset.urls import Resolver, public_uri, resolve
from airflow_llm_provider.errors import LLMInputError, LLMStateError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from airflow_llm_provider.dataset.layout import Layout

#: Endings of file names, after ``.gz`` or ``.zst`` of a text format.
_FORMATS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
}
_MOST_NAMED = 3
BATCH_ROWS = 4096


class Reader(Protocol):
    """Reads the files of one format.

    :param schema: the one schema of all files.
    """

    schema: pa.Schema
    notes: list[str]

    @property
    def facts(self) -> dict[str, Any]:
        """What it found out about all files, as plain JSON: a reader that is given it finds nothing out again."""
        ...

    def batches(self, file: SourceFile, batch_rows: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one file in order."""
        ...


@dataclass(frozen=True, kw_only=True)
class Known:
    """What an earlier look at a source found, so that some of its files are read as all of them would be.

    :param root: what :class:`~airflow_llm_provider.dataset.listing.Found` calls root.
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
    :param format: ``parquet``, ``csv`` or ``jsonl``.
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
        limit: int | None,
        partial: bool = False,
    ) -> None:
        self.url = url
        self._partial = partial
        self._limit = limit
        self.format = format
        self.files = found.files
        self._found = found
        self._resolver = resolver
        self._reader = reader
        self._partitions = _partition_names(found.files, reader.schema)
        #: What a person should know, to be logged once.
        self.notes: list[str] = reader.notes
        self.schema: pa.Schema = self._schema(columns_if_empty)

    def _schema(self, columns_if_empty: Sequence[str]) -> pa.Schema:
        if len(self._reader.schema):
            fields = list(self._reader.schema)
        elif columns_if_empty:
            fields = [
                pa.field(name, pa.string()) for name in columns_if_empty if name not in self._partitions
            ]
            self.notes.append(f"{public_uri(self.url)} is empty: 0 rows")
        else:
            raise LLMInputError(f"{public_uri(self.url)} is empty: nothing names its columns")
        return pa.schema([*fields, *(pa.field(name, pa.string()) for name in self._partitions)])

    def batches(self, batch_rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """Yield the rows in order, in batches bounded by rows and by bytes."""
        left = self._limit
        if left is None:
            yield from self._batches(batch_rows)
            return
        for batch in self._batches(min(batch_rows, left)):
            yield batch.slice(0, left)
            left -= min(left, batch.num_rows)
            if not left:
                return

    def _batches(self, batch_rows: int) -> Iterator[pa.RecordBatch]:
        for file in self.files:
            values = dict(file.partitions)
            for batch in self._reader.batches(file, batch_rows):
                partitions = [
                    pa.array([values[name]] * batch.num_rows, pa.string()) for name in self._partitions
                ]
                yield pa.RecordBatch.from_arrays([*batch.columns, *partitions], schema=self.schema)

    @property
    def known(self) -> Known:
        """What was found, to read some of the files later."""
        return Known(root=self._found.root, files=self.files, format=self.format, facts=self._reader.facts)

    def snapshot(self) -> list[dict[str, Any]]:
        """Say which files, of which size and version, were read."""
        return [
            {"uri": public_uri(file.uri), "size": file.size, "version": file.version} for file in self.files
        ]

    def check_apart(self, layout: Layout) -> None:
        """Make sure that the destination does not lie among the files of the source, nor the other way round.

        :raises LLMInputError: when it does: the next run would read this one's output.
        """
        check_apart(layout, self._found.fs, self._found.root, (file.path for file in self.files))

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
    format: str | None = None,  # noqa: A002 -- the field's word
    encoding: str = "utf-8",
    delimiter: str | None = None,
    columns_if_empty: Sequence[str] = (),
    limit: int | None = None,
    known: Known | None = None,
) -> Source:
    """Open a dataset.

    :param url: one file, a folder (with all folders below it) or a glob. Names that begin with ``_`` or ``.`` are
        passed over.
    :param resolver: finds the filesystem of a URL.
    :param format: ``parquet``, ``csv`` or ``jsonl``; ``None``: by the names of the files.
    :param encoding: encoding of text files without a byte order mark.
    :param delimiter: character between the cells of CSV files.
    :param columns_if_empty: names of the columns, as text, when all files have 0 bytes, so that nothing names them.
    :param limit: read only so many rows, from the first; ``None``: all.
    :param known: read only these files, of those that ``url`` names; ``None``: find out.
    :raises LLMInputError: when there are no files, or they cannot be one dataset.
    :raises LLMStateError: when they cannot be read.
    """
    if format is not None and format not in set(_FORMATS.values()):
        raise LLMInputError(f"format is {format!r}: give 'parquet', 'csv', 'jsonl' or None")
    if known is None:
        found = find_files(url, resolver)
        kind, facts = format or _format_of(found.files, url), None
    else:
        found = Found(fs=resolver(url)[0], root=known.root, files=known.files)
        kind, facts = known.format, known.facts
    files = Files(found.fs, found.files, encoding)
    reader: Reader
    if kind == "parquet":
        reader = ParquetReader(files, facts)
    elif kind == "csv":
        reader = CsvReader(files, delimiter, facts)
    else:
        reader = JsonLinesReader(files, facts)
    return Source(
        url=url,
        resolver=resolver,
        format=kind,
        found=found,
        reader=reader,
        columns_if_empty=columns_if_empty,
        limit=limit,
        partial=known is not None,
    )


def _format_of(files: tuple[SourceFile, ...], url: str) -> str:
    formats: dict[str | None, list[str]] = {}
    for file in files:
        formats.setdefault(_format_of_name(file.path), []).append(public_uri(file.uri))
    unknown = formats.pop(None, [])
    if unknown:
        raise LLMInputError(
            f"the source {public_uri(url)} holds files of unknown format: {_some(unknown)}; give format= 'parquet', "
            "'csv' or 'jsonl', or a glob that leaves them out"
        )
    if len(formats) > 1:
        raise LLMInputError(
            f"the source {public_uri(url)} holds files of several formats: "
            f"{_some([names[0] for names in formats.values()])}; give a glob that takes one of them"
        )
    return str(next(iter(formats)))


def _format_of_name(path: str) -> str | None:
    name = path.lower()
    packed = name.removesuffix(".gz").removesuffix(".zst")
    kind = next((kind for ending, kind in _FORMATS.items() if packed.endswith(ending)), None)
    return None if kind == "parquet" and packed != name else kind


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


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
