"""Excel: one sheet of a workbook; a column gets a type only when every cell of all files has it.

Excel knows texts, booleans, dates and numbers, and all of its numbers are floats. A column of whole numbers within 2^53 is
one of integers. Columns of several kinds become text, one form for each kind. A blank cell is null, and so is the cell of
an error or of a formula that was never computed: the file holds no value for it.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa

from airflow_llm_provider.dataset.files.urls import public_uri
from airflow_llm_provider.dataset.sources.readers.excel_cells import TYPES, converter, kind_of, text_of
from airflow_llm_provider.dataset.sources.readers.extras import of_extra
from airflow_llm_provider.dataset.sources.readers.unify import batch_of
from airflow_llm_provider.errors import LLMInputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow_llm_provider.dataset.sources.listing import SourceFile
    from airflow_llm_provider.dataset.sources.readers.files import Files

_MOST_NAMED = 20


class ExcelReader:
    """Reads one sheet of each workbook, a whole workbook in memory at a time.

    :param files: the files.
    :param sheet: name of the sheet; ``None``: the only one that is visible.
    :param facts: the facts of a reader of these files and others: then they are read once.
    """

    def __init__(self, files: Files, sheet: str | None, facts: Mapping[str, Any] | None = None) -> None:
        self._files = files
        self._sheet = sheet
        self._calamine = of_extra("python_calamine", "excel", what="Excel")
        self.notes: list[str] = []
        kinds = self._kinds() if facts is None else dict(facts["kinds"])
        #: What was found out about all files.
        self.facts: dict[str, Any] = {"kinds": kinds}
        self._converters = {name: converter(kind) for name, kind in kinds.items()}
        self.schema: pa.Schema = pa.schema(
            [(name, TYPES.get(kind, pa.string())) for name, kind in kinds.items()]
        )

    def _kinds(self) -> dict[str, int]:
        """Read everything for the kinds of cells in each column."""
        kinds: dict[str, int] = {}
        for file in self._files.files:
            header, rows = self._rows(file)
            kinds.update({name: 0 for name in header.values() if name not in kinds})
            for row in rows:
                for position, name in header.items():
                    kinds[name] |= kind_of(row[position])
        mixed = ", ".join(repr(name) for name, kind in kinds.items() if kind not in TYPES)
        if mixed:
            self.notes.append(f"columns {mixed} hold cells of several kinds: each value is its text")
        return kinds

    def batches(self, file: SourceFile, batch_rows: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one file in order, as the columns of ``schema``."""
        header, rows = self._rows(file)
        positions = {name: position for position, name in header.items()}
        held: list[list[Any]] = []
        for row in rows:
            held.append(row)
            if len(held) >= batch_rows:
                yield self._batch(held, positions, schema)
                held = []
        if held:
            yield self._batch(held, positions, schema)

    def _batch(
        self, rows: list[list[Any]], positions: Mapping[str, int], schema: pa.Schema
    ) -> pa.RecordBatch:
        arrays = []
        for field in schema:
            position = positions.get(field.name)
            if position is None:
                arrays.append(pa.nulls(len(rows), field.type))
                continue
            convert = self._converters[field.name]
            values = [None if row[position] == "" else convert(row[position]) for row in rows]
            arrays.append(pa.array(values, field.type))
        return batch_of(arrays, schema, len(rows))

    def _rows(self, file: SourceFile) -> tuple[dict[int, str], Iterator[list[Any]]]:
        """Return the names by the position of their columns, and the rows that are not blank."""
        with self._files.reading(file), self._files.open_raw(file) as stream:
            data = stream.read()
        numbered = enumerate(self._cells(file, data), 1)
        number, cells = next(((n, row) for n, row in numbered if any(cell != "" for cell in row)), (0, []))
        header = {position: text_of(cell) for position, cell in enumerate(cells) if cell != ""}
        repeated = sorted({name for name in header.values() if list(header.values()).count(name) > 1})
        if repeated:
            raise LLMInputError(
                f"{public_uri(file.uri)} has more than one column named {', '.join(map(repr, repeated))} in row {number}"
            )
        return header, self._below(file, header, numbered)

    def _below(
        self, file: SourceFile, header: Mapping[int, str], numbered: Iterator[tuple[int, list[Any]]]
    ) -> Iterator[list[Any]]:
        for number, row in numbered:
            filled = [position for position, cell in enumerate(row) if cell != ""]
            nameless = [position for position in filled if position not in header]
            if nameless:
                raise LLMInputError(
                    f"{public_uri(file.uri)}, cell {_cell(nameless[0], number)} has a value, and its column no name: the "
                    "first row that is not blank holds the names"
                )
            if filled:
                yield row

    def _cells(self, file: SourceFile, data: bytes) -> Iterator[list[Any]]:
        calamine = self._calamine
        try:
            workbook = calamine.CalamineWorkbook.from_filelike(io.BytesIO(data))
            sheet = workbook.get_sheet_by_name(self._sheet_of(file, workbook))
            if sheet.height:  # older versions of the library panic over the rows of an empty sheet
                yield from sheet.iter_rows()
        except calamine.PasswordError as error:
            raise LLMInputError(
                f"{public_uri(file.uri)} is protected by a password: save it without one"
            ) from error
        except LLMInputError:
            raise
        except calamine.CalamineError as error:
            _damaged(file, error)
        except BaseException as error:
            # What a panic in the library's Rust becomes: no subclass of Exception.
            if type(error).__name__ != "PanicException":
                raise
            _damaged(file, error)

    def _sheet_of(self, file: SourceFile, workbook: Any) -> str:
        calamine = self._calamine
        sheets = [meta for meta in workbook.sheets_metadata if meta.typ == calamine.SheetTypeEnum.WorkSheet]
        names = [meta.name for meta in sheets]
        if self._sheet is not None:
            if self._sheet in names:
                return self._sheet
            raise LLMInputError(
                f"{public_uri(file.uri)} has no sheet {self._sheet!r}; its sheets are {_listed(names)}"
            )
        visible = [meta.name for meta in sheets if meta.visible == calamine.SheetVisibleEnum.Visible]
        if len(visible) != 1:
            raise LLMInputError(
                f"{public_uri(file.uri)} has {len(visible)} visible sheets: give sheet=, one of {_listed(names)}"
            )
        return str(visible[0])


def _damaged(file: SourceFile, error: BaseException) -> NoReturn:
    raise LLMInputError(
        f"{public_uri(file.uri)} is damaged, cut short or no workbook ({type(error).__name__})"
    ) from error


def _listed(names: list[str]) -> str:
    return ", ".join(map(repr, names[:_MOST_NAMED])) or "none"


def _cell(position: int, row: int) -> str:
    """Return what Excel calls a cell, such as ``AB12``."""
    letters = ""
    position += 1
    while position:
        position, letter = divmod(position - 1, 26)
        letters = chr(ord("A") + letter) + letters
    return f"{letters}{row}"
