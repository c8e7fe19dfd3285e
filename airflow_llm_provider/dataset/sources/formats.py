"""File formats: known by the names of files, each read by its reader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from airflow_llm_provider.dataset.files.urls import public_uri
from airflow_llm_provider.dataset.sources.readers.avro import AvroReader
from airflow_llm_provider.dataset.sources.readers.csv_text import CsvReader
from airflow_llm_provider.dataset.sources.readers.excel import ExcelReader
from airflow_llm_provider.dataset.sources.readers.files import Files
from airflow_llm_provider.dataset.sources.readers.json_lines import JsonLinesReader
from airflow_llm_provider.dataset.sources.readers.orc import OrcReader
from airflow_llm_provider.dataset.sources.readers.parquet import ParquetReader
from airflow_llm_provider.errors import LLMInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pyarrow as pa

    from airflow_llm_provider.dataset.sources.listing import Found, SourceFile

#: Endings of file names, after ``.gz`` or ``.zst`` of a text format.
_ENDINGS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".xlsx": "excel",
    ".avro": "avro",
    ".orc": "orc",
}
FORMATS = tuple(dict.fromkeys(_ENDINGS.values()))
_PACKED = frozenset({"csv", "jsonl"})
_MOST_NAMED = 3


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How files are read.

    :param format: one of :data:`FORMATS`; ``None``: by the names of the files.
    :param encoding: encoding of text files without a byte order mark.
    :param delimiter: character between the cells of CSV files; ``None``: a tab in ``.tsv`` files, else a comma.
    :param sheet: name of the sheet of Excel files; ``None``: the only one that is visible.
    :param types: types of columns of CSV files by their names; ``None``: all is text.
    """

    format: str | None = None
    encoding: str = "utf-8"
    delimiter: str | None = None
    sheet: str | None = None
    types: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if self.format is not None and self.format not in FORMATS:
            raise LLMInputError(f"format is {self.format!r}: give {_listed()} or None")


class Reader(Protocol):
    """Reads the files of one format.

    :param schema: the one schema of all files.
    :param notes: what a person should know.
    """

    schema: pa.Schema
    notes: list[str]

    @property
    def facts(self) -> dict[str, Any]:
        """What it found out about all files, as plain JSON: a reader that is given it finds nothing out again."""
        ...

    def batches(self, file: SourceFile, batch_rows: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one file in order.

        :param schema: the columns wanted: some of the reader's, in its order.
        """
        ...


def open_reader(
    found: Found, kind: str, options: ReadOptions, facts: Mapping[str, Any] | None = None
) -> Reader:
    """Return what reads the files.

    :param kind: one of :data:`FORMATS`.
    :param facts: the facts of a reader of these files and others; ``None``: find them out.
    :raises LLMInputError: when the files cannot be one dataset.
    """
    files = Files(found.fs, found.files, options.encoding)
    makers: dict[str, Callable[[], Reader]] = {
        "parquet": lambda: ParquetReader(files, facts),
        "csv": lambda: CsvReader(files, options.delimiter, options.types, facts),
        "jsonl": lambda: JsonLinesReader(files, facts),
        "excel": lambda: ExcelReader(files, options.sheet, facts),
        "avro": lambda: AvroReader(files, facts),
        "orc": lambda: OrcReader(files, facts),
    }
    return makers[kind]()


def format_of(files: tuple[SourceFile, ...], url: str) -> str:
    """Return the format that the names of the files say.

    :raises LLMInputError: when they are of several formats, or of none that is known.
    """
    formats: dict[str | None, list[str]] = {}
    for file in files:
        formats.setdefault(_format_of_name(file.path), []).append(public_uri(file.uri))
    unknown = formats.pop(None, [])
    if unknown:
        raise LLMInputError(
            f"the source {public_uri(url)} holds files of unknown format: {_some(unknown)}; give format= {_listed()}, "
            "or a glob that leaves them out"
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
    kind = next((kind for ending, kind in _ENDINGS.items() if packed.endswith(ending)), None)
    return None if kind not in _PACKED and packed != name else kind


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def _listed() -> str:
    return ", ".join(map(repr, FORMATS))
