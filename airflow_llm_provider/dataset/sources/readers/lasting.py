"""Types that stay what they are in the shards and in the output, which are Parquet."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_llm_provider.dataset.sources.readers.unify import as_type, batch_of
from airflow_llm_provider.errors import LLMInputError

if TYPE_CHECKING:
    from collections.abc import Iterable


def lasting_schema(fields: Iterable[pa.Field], whose: str) -> pa.Schema:
    """Return the columns with types that Parquet gives back: seconds become milliseconds, for instance.

    :param whose: what has these columns, for messages.
    :raises LLMInputError: naming a column of a type that Parquet cannot hold.
    """
    return pa.schema(_lasting(field, whose) for field in fields)


def _lasting(field: pa.Field, whose: str) -> pa.Field:
    file = io.BytesIO()
    try:
        pq.write_table(pa.schema([field]).empty_table(), file)
        return field.with_type(pq.read_schema(file).field(0).type)
    except pa.ArrowException as error:
        raise LLMInputError(
            f"column {field.name!r} of {whose} is {field.type}, which no Parquet file can hold: make it another type, or "
            "leave it out"
        ) from error


def lasting_batch(batch: pa.RecordBatch, schema: pa.Schema, whose: str) -> pa.RecordBatch:
    """Return the same rows with the types of a lasting schema.

    :raises LLMInputError: naming a column with a value that the type cannot hold exactly.
    """
    arrays = []
    for field in schema:
        array = batch.column(batch.schema.get_field_index(field.name))
        if array.null_count and not field.nullable:
            raise LLMInputError(
                f"column {field.name!r} of {whose} is declared not null and holds nulls: declare it nullable"
            )
        try:
            arrays.append(as_type(array, field.type))
        except pa.ArrowException as error:
            # Arrow's words may quote the value.
            raise LLMInputError(
                f"column {field.name!r} of {whose} holds a value of type {array.type} that {field.type} cannot hold "
                "exactly: make it another type, or leave it out"
            ) from error
    return batch_of(arrays, schema, batch.num_rows)
