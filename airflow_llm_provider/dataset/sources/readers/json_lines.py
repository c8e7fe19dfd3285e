"""JSON Lines: one object a line; a column gets a type only when every value of all files has it.

Columns of strings, booleans, integers (within 64 bits) and floats get that type; integers among floats become floats
while no digit is lost. All else (objects, arrays, mixed types, larger integers) becomes the JSON text of each value.
A missing key is null.
"""

from __future__ import annotations

import json
import math
import re
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa

from airflow_llm_provider.dataset.arrow.text import clean, count_surrogates, json_text
from airflow_llm_provider.dataset.files.urls import public_uri
from airflow_llm_provider.dataset.sources.readers.unify import batch_of
from airflow_llm_provider.errors import LLMInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from airflow_llm_provider.dataset.sources.listing import SourceFile
    from airflow_llm_provider.dataset.sources.readers.files import Files

_BATCH_BYTES = 8 << 20
#: More keys than this are data, not columns.
_MOST_COLUMNS = 10_000
#: A key, or a text or nested object that looks like one.
_KEY = re.compile(rb'"\s*:')
_LONG_NUMBER = re.compile(rb"\d{19,}")
_EXACT_IN_FLOAT = 1 << 53
_INT64_BOUND = 1 << 63
_BOOL, _INT, _FLOAT, _TEXT, _OTHER, _INEXACT_INT = 1, 2, 4, 8, 16, 32
_KINDS = {type(None): 0, bool: _BOOL, int: _INT, float: _FLOAT, str: _TEXT, list: _OTHER, dict: _OTHER}
_TYPES = {
    0: pa.string(),
    _TEXT: pa.string(),
    _BOOL: pa.bool_(),
    _INT: pa.int64(),
    _INT | _INEXACT_INT: pa.int64(),
    _FLOAT: pa.float64(),
    _INT | _FLOAT: pa.float64(),
}


class JsonLinesReader:
    """Reads JSON Lines files in pieces, twice: once for the types, once for the values.

    :param files: the files.
    :param facts: the facts of a reader of these files and others: then they are read once.
    """

    def __init__(self, files: Files, facts: Mapping[str, Any] | None = None) -> None:
        self._files = files
        self._replaced = 0
        self.notes: list[str] = []
        kinds = self._kinds() if facts is None else dict(facts["kinds"])
        #: What was found out about all files.
        self.facts: dict[str, Any] = {"kinds": kinds}
        self._converters = {name: _converter(kind) for name, kind in kinds.items()}
        self.schema: pa.Schema = pa.schema(
            [(name, _TYPES.get(kind, pa.string())) for name, kind in kinds.items()]
        )

    def _kinds(self) -> dict[str, int]:
        """Read everything for the kinds of values in each column."""
        kinds: dict[str, int] = {}
        place = ""
        for file in self._files.files:
            for place, _, row in self._rows(file, check=True):
                _note_kinds(kinds, row)
                if len(kinds) > _MOST_COLUMNS:
                    raise LLMInputError(
                        f"{place}: more than {_MOST_COLUMNS:,} different keys; keys are columns"
                    )
        if place and not kinds:
            raise LLMInputError(f"{place}: no object has any key, so there are no columns")
        mixed = [name for name, kind in kinds.items() if kind not in _TYPES]
        if mixed:
            names = ", ".join(map(repr, mixed))
            self.notes.append(
                f"columns {names} hold objects, arrays or mixed types: each value is its JSON text"
            )
        if self._replaced:
            self.notes.append(
                f"{self._replaced} halves of surrogate pairs became U+FFFD: no UTF-8 text can hold them"
            )
        return kinds

    def _rows(self, file: SourceFile, *, check: bool) -> Iterator[tuple[str, int, dict[str, Any]]]:
        """Yield place, bytes and object of each line."""
        with self._files.reading(file), self._lines(file) as lines:
            offset = 0
            for number, line in enumerate(lines, 1):
                start, offset = offset, offset + len(line)
                if not line.strip():
                    continue
                place = f"{public_uri(file.uri)}, line {number}"
                try:
                    row = self._parse(line, place, check=check)
                except UnicodeDecodeError as error:
                    raise LLMInputError(
                        f"{place}, byte {start + error.start} is 0x{line[error.start]:02x}, which is not utf-8: give the "
                        "file's encoding="
                    ) from error
                yield place, len(line), row

    @contextmanager
    def _lines(self, file: SourceFile) -> Iterator[Iterator[bytes]]:
        with self._files.open_binary(file) as stream:
            encoding = self._files.encoding_of(stream)
        if encoding.lower().replace("_", "-") in {"utf-8", "utf8"}:
            with self._files.open_binary(file) as stream:
                yield iter(stream)
            return
        with self._files.open_text(file) as text:
            yield self._encoded(file, text)

    def _encoded(self, file: SourceFile, text: Any) -> Iterator[bytes]:
        try:
            for line in _joined(text):
                yield line.encode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            offset, value, encoding = self._files.undecodable(file)
            raise LLMInputError(
                f"{public_uri(file.uri)}, byte {offset} is 0x{value:02x}, which is not {encoding}: give the file's "
                "encoding="
            ) from error

    def _parse(self, line: bytes, place: str, *, check: bool) -> dict[str, Any]:
        row: Any
        try:
            # Integers beyond 64 bits would come back as rounded floats.
            row = None if _LONG_NUMBER.search(line) else orjson.loads(line)
        except orjson.JSONDecodeError:
            row = None
        if row is None:
            row = self._parse_slowly(line, place, count=check)
        if not isinstance(row, dict):
            raise LLMInputError(
                f"{place} is no JSON object: JSON Lines has one object on each line; turn an array into lines"
            )
        if check and len(_KEY.findall(line)) != len(row):
            _check_keys(line, place)
        return row

    def _parse_slowly(self, line: bytes, place: str, *, count: bool) -> Any:
        """Parse what orjson refuses: halves of surrogate pairs, NaN, very large integers."""
        text = line.decode()
        try:
            row, replaced = _cleaned(json.loads(text, parse_float=_finite))
        except RecursionError as error:
            raise LLMInputError(f"{place} is nested too deeply") from error
        except LLMInputError as error:
            raise LLMInputError(f"{place} {error}") from None
        except ValueError as error:
            if not isinstance(error, json.JSONDecodeError):
                # The bound of Python's own, which keeps digits from costing the square of their number.
                raise LLMInputError(
                    f"{place} has an integer of more than {sys.get_int_max_str_digits()} digits: write it as a text"
                ) from None
            why = error.msg
            raise LLMInputError(f"{place} is no whole JSON value ({why}); is the file cut short?") from error
        if count:
            self._replaced += replaced
        return row

    def batches(self, file: SourceFile, batch_rows: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one file in order, as the columns of ``schema``."""
        rows: list[dict[str, Any]] = []
        size = 0
        for _, length, row in self._rows(file, check=False):
            rows.append(row)
            size += length
            if len(rows) >= batch_rows or size >= _BATCH_BYTES:
                yield self._batch(rows, schema)
                rows, size = [], 0
        if rows:
            yield self._batch(rows, schema)

    def _batch(self, rows: list[dict[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
        arrays = []
        for field in schema:
            values = [row.get(field.name) for row in rows]
            convert = self._converters[field.name]
            if convert is not None:
                try:
                    values = [None if value is None else convert(value) for value in values]
                except RecursionError as error:
                    raise LLMInputError(
                        f"column {field.name!r} holds a value that is nested too deeply"
                    ) from error
            arrays.append(pa.array(values, field.type))
        return batch_of(arrays, schema, len(rows))


def _note_kinds(kinds: dict[str, int], row: dict[str, Any]) -> None:
    for key, value in row.items():
        kind = _KINDS[type(value)]
        if kind == _INT and not -_EXACT_IN_FLOAT <= value <= _EXACT_IN_FLOAT:
            fits = -_INT64_BOUND <= value < _INT64_BOUND
            kind = _INT | _INEXACT_INT if fits else _OTHER
        kinds[key] = kinds.get(key, 0) | kind


def _converter(kind: int) -> Callable[[Any], Any] | None:
    if kind not in _TYPES:
        return json_text
    return float if kind == _INT | _FLOAT else None


def _cleaned(value: Any) -> tuple[Any, int]:
    """Replace halves of surrogate pairs anywhere in a JSON value, and count them."""
    if isinstance(value, str):
        return clean(value), count_surrogates(value)
    if isinstance(value, list):
        parts = [_cleaned(part) for part in value]
        return [part for part, _ in parts], sum(count for _, count in parts)
    if isinstance(value, dict):
        cleaned = {clean(key): _cleaned(part) for key, part in value.items()}
        if len(cleaned) < len(value):
            raise LLMInputError("has keys that differ in halves of surrogate pairs only: give each key once")
        return {key: part for key, (part, _) in cleaned.items()}, sum(count for _, count in cleaned.values())
    return value, 0


def _finite(digits: str) -> float:
    """Read a float, and refuse what would silently become infinity."""
    number = float(digits)
    if math.isinf(number):
        raise LLMInputError("has a number beyond the range of floats: write it as a text")
    return number


def _check_keys(line: bytes, place: str) -> None:
    """Refuse an object that has a key twice: a parser would silently drop one of the values."""

    def check(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        if len(set(names)) < len(names):
            repeated = next(name for name in names if names.count(name) > 1)
            raise LLMInputError(
                f"{place} has the key {clean(repeated)!r} twice in one object: give each key once"
            )
        return dict(pairs)

    try:
        json.loads(line, object_pairs_hook=check)
    except RecursionError as error:
        raise LLMInputError(f"{place} is nested too deeply") from error


def _joined(text: Any) -> Iterator[str]:
    r"""Yield lines that end in ``\n`` only: other line breaks may stand inside a JSON text's white space."""
    line = ""
    for part in text:
        line += part
        if line.endswith("\n"):
            yield line
            line = ""
    if line:
        yield line
