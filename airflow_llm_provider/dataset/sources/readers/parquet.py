"""Parquet: values pass bit for bit, under one schema for all files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_llm_provider.dataset.arrow.schemas import decode_schema, encode_schema
from airflow_llm_provider.dataset.arrow.sizes import rows_that_fit
from airflow_llm_provider.dataset.files.storage import PARQUET_BUFFER
from airflow_llm_provider.dataset.sources.readers.unify import MergedSchema, align

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager

    import pyarrow as pa
    import pyarrow.parquet as pq

    from airflow_llm_provider.dataset.sources.listing import SourceFile
    from airflow_llm_provider.dataset.sources.readers.files import Files

#: Rows that tell how large the rows are. The file's own statistics do not: a dictionary hides large values.
_PROBE_ROWS = 16


class ParquetReader:
    """Reads Parquet files in pieces.

    Their schemas must agree: a column may be missing or all-null in some files, and integers and floats may differ in
    width; anything else is an error before the first row.

    :param files: the files.
    :param facts: the facts of a reader of these files and others, which need not be found out again.
    """

    def __init__(self, files: Files, facts: Mapping[str, Any] | None = None) -> None:
        self._files = files
        self.notes: list[str] = []
        if facts is not None:
            self.schema: pa.Schema = decode_schema(facts["schema"])
            return
        merged = MergedSchema()
        for file in files.files:
            with self._open(file) as parquet:
                merged.add(parquet.schema_arrow, file.uri)
        self.schema = merged.schema()
        self.notes = merged.notes()

    @property
    def facts(self) -> dict[str, Any]:
        """What was found out about all files."""
        return {"schema": encode_schema(self.schema)}

    def _open(self, file: SourceFile) -> AbstractContextManager[pq.ParquetFile]:
        return self._files.open_parquet(
            file,
            pre_buffer=False,
            buffer_size=PARQUET_BUFFER,
            # Timestamps of older writers: read as nanoseconds, the year 9999 would silently become another.
            coerce_int96_timestamp_unit="us",
        )

    def batches(self, file: SourceFile, batch_rows: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one file in order, as the columns of ``schema``; no others are read."""
        with self._open(file) as parquet:
            names = [name for name in parquet.schema_arrow.names if name in schema.names]

            def read(group: int, rows: int) -> Iterator[pa.RecordBatch]:
                batches = parquet.iter_batches(batch_size=rows, row_groups=[group], columns=names)
                return self._aligned(file, batches, schema)

            probe = next(read(0, _PROBE_ROWS), None) if parquet.num_row_groups else None
            rows = rows_that_fit(probe, batch_rows)
            for group in range(parquet.num_row_groups):
                batch = None
                for batch in read(group, rows):
                    yield batch
                rows = rows_that_fit(batch, batch_rows)

    def _aligned(
        self, file: SourceFile, batches: Iterator[pa.RecordBatch], schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        while True:
            with self._files.reading(file):
                batch = next(batches, None)
                if batch is None:
                    return
                aligned = align(batch, schema)
            yield aligned
