"""ORC: stripe by stripe, under one schema for all files. Types are Parquet's nearest."""

from __future__ import annotations

import contextlib
import datetime as dt
import io
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_llm_provider.dataset.arrow.schemas import decode_schema, encode_schema
from airflow_llm_provider.dataset.arrow.sizes import rows_that_fit
from airflow_llm_provider.dataset.files.urls import public_uri
from airflow_llm_provider.dataset.sources.readers.extras import load
from airflow_llm_provider.dataset.sources.readers.lasting import lasting_schema
from airflow_llm_provider.dataset.sources.readers.unify import MergedSchema, align
from airflow_llm_provider.errors import LLMInputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow_llm_provider.dataset.sources.listing import SourceFile
    from airflow_llm_provider.dataset.sources.readers.files import Files


#: A moment that nanoseconds since 1970 cannot hold.
_FAR = dt.datetime(9999, 12, 31)  # noqa: DTZ001 -- a timestamp without zone


class OrcReader:
    """Reads ORC files, one stripe in memory at a time.

    :param files: the files.
    :param facts: the facts of a reader of these files and others, which need not be found out again.
    """

    def __init__(self, files: Files, facts: Mapping[str, Any] | None = None) -> None:
        self._files = files
        self._orc = load("pyarrow.orc", what="ORC", remedy="install a pyarrow that has it, as the wheels do")
        self.notes: list[str] = []
        if facts is not None:
            self.schema: pa.Schema = decode_schema(facts["schema"])
            return
        merged = MergedSchema()
        for file in files.files:
            with files.open_orc(file, self._orc.ORCFile) as orc:
                _check_timestamps(self._orc, orc.schema, file)
                merged.add(orc.schema, file.uri)
        self.schema = lasting_schema(merged.schema(), public_uri(files.files[0].uri))
        self.notes = merged.notes()

    @property
    def facts(self) -> dict[str, Any]:
        """What was found out about all files."""
        return {"schema": encode_schema(self.schema)}

    def batches(self, file: SourceFile, batch_rows: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one file in order, as the columns of ``schema``; no others are read."""
        with self._files.open_orc(file, self._orc.ORCFile) as orc:
            there = orc.schema.names
            # Arrow reads a stripe without columns as one without rows.
            names = [name for name in there if name in schema.names] or there[:1]
            for number in range(orc.nstripes):
                with self._files.reading(file, f", stripe {number}"):
                    stripe = orc.read_stripe(number, columns=names)
                    stripe.validate(full=True)
                yield from _pieces(stripe, schema, batch_rows)


def _check_timestamps(orc: Any, schema: pa.Schema, file: SourceFile) -> None:
    """Refuse timestamps where Arrow is so old that a far one would silently become another."""
    named = [field.name for field in schema if "timestamp" in str(field.type)]
    if not named:
        return
    far = io.BytesIO()
    orc.write_table(pa.table({"v": pa.array([_FAR], pa.timestamp("us"))}), far)
    with contextlib.suppress(pa.ArrowInvalid):
        orc.ORCFile(far).read()
        raise LLMInputError(
            f"{public_uri(file.uri)} has timestamps ({', '.join(map(repr, named))}), which pyarrow {pa.__version__} reads "
            "wrongly from ORC before 1677 and after 2262: install a newer pyarrow"
        )


def _pieces(stripe: pa.RecordBatch, schema: pa.Schema, batch_rows: int) -> Iterator[pa.RecordBatch]:
    start = 0
    rows = rows_that_fit(stripe, batch_rows)
    while start < stripe.num_rows:
        piece = align(stripe.slice(start, rows), schema)
        yield piece
        start += piece.num_rows
        rows = rows_that_fit(piece, batch_rows)
