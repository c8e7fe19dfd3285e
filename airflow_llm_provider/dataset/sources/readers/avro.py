"""Avro: block by block, under one schema for all files. Every Avro type has its Arrow type.

A union of several types, other than with null, becomes the JSON text of each value.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_llm_provider.dataset.arrow.schemas import decode_schema, encode_schema
from airflow_llm_provider.dataset.files.urls import public_uri
from airflow_llm_provider.dataset.sources.readers.avro_types import Shape, optional, shape_of
from airflow_llm_provider.dataset.sources.readers.extras import of_extra
from airflow_llm_provider.dataset.sources.readers.lasting import lasting_schema
from airflow_llm_provider.dataset.sources.readers.unify import MergedSchema, align, batch_of
from airflow_llm_provider.errors import LLMError, LLMInputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow_llm_provider.dataset.sources.listing import SourceFile
    from airflow_llm_provider.dataset.sources.readers.files import Files


class AvroReader:
    """Reads Avro files, one block in memory at a time.

    :param files: the files.
    :param facts: the facts of a reader of these files and others, which need not be found out again.
    """

    def __init__(self, files: Files, facts: Mapping[str, Any] | None = None) -> None:
        self._files = files
        self._fastavro = of_extra("fastavro", "avro", what="Avro")
        self.notes: list[str] = []
        if facts is not None:
            self.schema: pa.Schema = decode_schema(facts["schema"])
            return
        merged = MergedSchema()
        mixed: dict[str, None] = {}
        for file in files.files:
            with self._open(file) as (blocks, _):
                shapes = _shapes(file, blocks)
            mixed.update(dict.fromkeys(name for name, shape in shapes.items() if shape.mixed))
            merged.add(_schema(shapes), file.uri)
        self.schema = lasting_schema(merged.schema(), public_uri(files.files[0].uri))
        self.notes = merged.notes()
        if mixed:
            self.notes.append(
                f"columns {', '.join(map(repr, mixed))} hold unions of several types: each value is its JSON text"
            )

    @property
    def facts(self) -> dict[str, Any]:
        """What was found out about all files."""
        return {"schema": encode_schema(self.schema)}

    @contextmanager
    def _open(self, file: SourceFile) -> Iterator[tuple[Any, Any]]:
        with self._files.reading(file), self._files.open_raw(file) as stream:
            with _decoding(file, "its header"):
                blocks = self._fastavro.block_reader(stream)
            yield blocks, stream

    def batches(self, file: SourceFile, batch_rows: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one file in order, as the columns of ``schema``."""
        with self._open(file) as (blocks, stream):
            shapes = {name: s for name, s in _shapes(file, blocks).items() if name in schema.names}
            own = _schema(shapes)
            for place, records in self._blocks(file, blocks, stream):
                for start in range(0, len(records), batch_rows):
                    rows = records[start : start + batch_rows]
                    with _decoding(file, place):
                        batch = align(_batch(rows, shapes, own), schema)
                    yield batch

    def _blocks(
        self, file: SourceFile, blocks: Any, stream: Any
    ) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        end = stream.tell()
        while True:
            place = f"the block at byte {end}"
            with _decoding(file, place):
                block = next(blocks, None)
                if block is None:
                    break
                records = list(block)
                if len(records) != block.num_records or block.bytes_.read(1):
                    raise EOFError
                end = block.offset + block.size
            yield place, records
        # fastavro takes a file that ends within the first bytes of a block for one that ends before it.
        if stream.tell() != end:
            raise LLMInputError(f"{public_uri(file.uri)}, the block at byte {end} is damaged or cut short")


def _shapes(file: SourceFile, blocks: Any) -> dict[str, Shape]:
    names: dict[str, Any] = {}
    _gather_names(blocks.writer_schema, names)
    schema = blocks.writer_schema
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise LLMInputError(f"{public_uri(file.uri)} holds no records, so that it has no columns")
    shapes = {}
    for field in schema["fields"]:
        try:
            shapes[field["name"]] = shape_of(field["type"], names, frozenset({schema["name"]}))
        except LLMInputError as error:
            raise LLMInputError(f"{public_uri(file.uri)}, column {field['name']!r}: {error}") from None
    return shapes


def _gather_names(schema: Any, names: dict[str, Any]) -> None:
    if isinstance(schema, list):
        for part in schema:
            _gather_names(part, names)
    elif isinstance(schema, dict):
        if "name" in schema and schema.get("type") in {"record", "enum", "fixed"}:
            names[schema["name"]] = schema
        for part in (schema.get("items"), schema.get("values"), schema.get("type")):
            _gather_names(part, names)
        for field in schema.get("fields", ()):
            _gather_names(field["type"], names)


def _schema(shapes: Mapping[str, Shape]) -> pa.Schema:
    return pa.schema([pa.field(name, shape.type, shape.nullable) for name, shape in shapes.items()])


def _batch(rows: list[dict[str, Any]], shapes: Mapping[str, Shape], schema: pa.Schema) -> pa.RecordBatch:
    arrays = []
    for name, shape in shapes.items():
        convert = optional(shape.convert)
        arrays.append(pa.array([convert(row[name]) for row in rows], shape.type))
    return batch_of(arrays, schema, len(rows))


@contextmanager
def _decoding(file: SourceFile, place: str) -> Iterator[None]:
    """Name the place of whatever is raised over bytes that are no Avro; their words may quote a value."""
    try:
        yield
    except LLMError:
        raise
    except (OSError, MemoryError) as error:
        if not isinstance(error, OSError) or error.errno is not None:
            raise
        raise _damaged(file, place, error) from error
    except ValueError as error:
        if "codec" in str(error) and "install" in str(error):
            raise LLMInputError(
                f"{public_uri(file.uri)} is compressed in a way that needs another library: {error}"
            ) from error
        raise _damaged(file, place, error) from error
    except OverflowError as error:
        raise LLMInputError(
            f"{public_uri(file.uri)}, {place} holds a value that Python cannot hold, such as a date beyond the year 9999"
        ) from error
    except Exception as error:
        raise _damaged(file, place, error) from error


def _damaged(file: SourceFile, place: str, error: Exception) -> LLMInputError:
    return LLMInputError(
        f"{public_uri(file.uri)}, {place} is damaged, cut short or no Avro ({type(error).__name__})"
    )
