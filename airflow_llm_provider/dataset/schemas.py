"""Schemas as text, for JSON."""

from __future__ import annotations

import base64

import pyarrow as pa


def encode_schema(schema: pa.Schema) -> str:
    """Return a schema as ASCII text."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def decode_schema(text: str) -> pa.Schema:
    """Rebuild a schema from :func:`encode_schema`."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
