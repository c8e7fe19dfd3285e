"""Schemas: as text, and of what is carried to the output."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence


def encode_schema(schema: pa.Schema) -> str:
    """Return a schema as ASCII text."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def decode_schema(text: str) -> pa.Schema:
    """Rebuild a schema from :func:`encode_schema`."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def schema_text(schema: pa.Schema) -> str:
    """Return names and types as text: the same for every version of Arrow."""
    return "\n".join(f"{field.name}\t{field.type}\t{field.nullable}" for field in schema)


def carried_schema(schema: pa.Schema, carried: Sequence[str] | None) -> pa.Schema:
    """Return the columns of the shards that the output carries."""
    return schema if carried is None else pa.schema(schema.field(name) for name in carried)
