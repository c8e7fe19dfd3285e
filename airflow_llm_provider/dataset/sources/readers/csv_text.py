"""CSV: every cell is text, exactly as it is written, unless its column is declared to be something else. ``007``, ``NA`` and blanks stay what they are.

A blank cell is the empty string, never null. Blank lines are no rows, as for every other reader of CSV. Whatever is
not sound CSV is an error that names the place: no row is dropped, shortened or filled up.
"""

from __future__ import annotations

import codecs
import csv
import io
import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_llm_provider.dataset.arrow.schemas import decode_schema, encode_schema
from airflow_llm_provider.dataset.files.urls import public_uri
from airflow_llm_provider.dataset.sources.readers.cells import declared_type, typed
from airflow_llm_provider.dataset.sources.readers.unify import MergedSchema, batch_of
from airflow_llm_provider.errors import LLMInputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow_llm_provider.dataset.sources.listing import SourceFile
    from airflow_llm_provider.dataset.sources.readers.files import Files

#: Characters of one batch.
_BATCH_CHARACTERS = 8 << 20
_LONGEST_CELL = min(sys.maxsize, (1 << 31) - 1)


class CsvReader:
    """Reads CSV files in pieces.

    :param files: the files.
    :param delimiter: character between cells; ``None``: a tab in ``.tsv`` files, else a comma.
    :param types: names of types by column, where it is not text; ``None``: all is text.
    :param facts: the facts of a reader of these files and others, which need not be found out again.
    """

    def __init__(
        self,
        files: Files,
        delimiter: str | None,
        types: Mapping[str, str] | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        if delimiter is not None and (len(delimiter) != 1 or delimiter in '\r\n"'):
            raise LLMInputError(f"delimiter is {delimiter!r}: give one character, such as ';'")
        self._files = files
        self._delimiter = delimiter
        # Process-wide, since the csv module knows no other: cells of more than 131,072 characters are ordinary text.
        csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_CELL))
        self.notes: list[str] = []
        if facts is not None:
            self.schema: pa.Schema = decode_schema(facts["schema"])
            return
        merged = MergedSchema()
        for file in files.files:
            header = self._header(file)
            if header:
                merged.add(pa.schema([(name, pa.string()) for name in header]), file.uri)
        self.schema = _declared(merged.schema(), types or {})
        self.notes = merged.notes()

    @property
    def facts(self) -> dict[str, Any]:
        """What was found out about all files."""
        return {"schema": encode_schema(self.schema)}

    def _header(self, file: SourceFile) -> list[str]:
        with self._files.reading(file), self._files.open_text(file) as text:
            header = next(self._records(file, text), (0, []))[1]
        if any("\0" in name for name in header):
            raise LLMInputError(
                f"{public_uri(file.uri)} has NUL characters in its header, as UTF-16 read as another encoding has: "
                "give encoding='utf-16-le' or 'utf-16-be'"
            )
        return header

    def _records(self, file: SourceFile, text: Any) -> Iterator[tuple[int, list[str]]]:
        """Yield line number and cells of each record."""
        reader = csv.reader(text, delimiter=self._delimiter_of(file), strict=True)
        while True:
            try:
                record = next(reader, None)
            except csv.Error as error:
                raise LLMInputError(
                    f"{public_uri(file.uri)}, line {reader.line_num}: no sound CSV ({error}); quotes inside a quoted "
                    "cell are doubled, and every quote is closed"
                ) from error
            except UnicodeDecodeError as error:
                raise self._undecodable(file) from error
            if record is None:
                return
            if record:
                yield reader.line_num, record

    def _delimiter_of(self, file: SourceFile) -> str:
        if self._delimiter is not None:
            return self._delimiter
        name = file.path.lower().removesuffix(".gz").removesuffix(".zst")
        return "\t" if name.endswith(".tsv") else ","

    def _undecodable(self, file: SourceFile) -> LLMInputError:
        offset, value, encoding = self._files.undecodable(file)
        with self._files.open_binary(file) as stream:
            # What stands before the bad byte is sound, so the records in it can be counted.
            decoder = codecs.getincrementaldecoder(encoding)("ignore")
            reader = csv.reader(_lines_before(stream, decoder, offset), delimiter=self._delimiter_of(file))
            row = sum(1 for record in reader if record) - 1
        place = f"row {row} (line {reader.line_num})" if row else "the header row"
        return LLMInputError(
            f"{public_uri(file.uri)}: {place}, byte {offset} is 0x{value:02x}, which is not {encoding}: give the "
            "file's encoding=, such as 'gbk', 'cp1252' or 'latin-1'"
        )

    def batches(self, file: SourceFile, batch_rows: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one file in order, as the columns of ``schema``."""
        with self._files.reading(file), self._files.open_text(file) as text:
            records = self._records(file, text)
            header = next(records, (0, []))[1]
            rows: list[list[str]] = []
            lines: list[int] = []
            characters = 0
            for line, record in records:
                if len(record) != len(header):
                    raise LLMInputError(
                        f"{public_uri(file.uri)}, line {line}: {len(record)} cells where the header has "
                        f"{len(header)}; quote cells that hold the delimiter or a line break, or give delimiter="
                    )
                lines.append(line)
                rows.append(record)
                characters += sum(map(len, record))
                if len(rows) >= batch_rows or characters >= _BATCH_CHARACTERS:
                    yield _batch(file, lines, header, rows, schema)
                    rows, lines, characters = [], [], 0
            if rows:
                yield _batch(file, lines, header, rows, schema)


def _declared(schema: pa.Schema, types: Mapping[str, str]) -> pa.Schema:
    unknown = [name for name in types if name not in schema.names]
    if unknown and len(schema):
        raise LLMInputError(
            f"types names the columns {', '.join(map(repr, unknown))}, which the source does not have; its columns are "
            f"{', '.join(map(repr, schema.names))}"
        )
    return pa.schema(
        field.with_type(declared_type(types[field.name])) if field.name in types else field
        for field in schema
    )


def _batch(
    file: SourceFile, lines: list[int], header: list[str], rows: list[list[str]], schema: pa.Schema
) -> pa.RecordBatch:
    columns = dict(zip(header, zip(*rows, strict=True), strict=True))
    arrays = []
    for field in schema:
        if field.name not in columns:
            arrays.append(pa.nulls(len(rows), field.type))
            continue
        values, bad = typed(columns[field.name], field.type)
        if bad is not None:
            # Not the cell itself: messages hold no values.
            raise LLMInputError(
                f"{public_uri(file.uri)}, line {lines[bad]}, column {field.name!r}: the cell is no {field.type}; mend it, or "
                "leave the column text"
            )
        arrays.append(values)
    return batch_of(arrays, schema, len(rows))


def _lines_before(stream: io.BufferedReader, decoder: codecs.IncrementalDecoder, size: int) -> Iterator[str]:
    """Yield the text lines of the first ``size`` bytes, with a sign in the place of the byte after them."""
    rest = ""
    while size and (chunk := stream.read(min(size, 1 << 20))):
        size -= len(chunk)
        lines = list(io.StringIO(rest + decoder.decode(chunk), newline=""))
        # Kept even if it has its end: a carriage return may be half of one.
        rest = lines.pop() if lines else ""
        yield from lines
    yield from io.StringIO(rest + "?", newline="")
