"""What tells that state is still what was written: a checksum in our JSON files, and the content in a shard's name."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_llm_provider.dataset.arrow.content_hash import ContentHash
from airflow_llm_provider.dataset.arrow.schemas import schema_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_llm_provider.spec import CompletionSpec

_KEY = "checksum"
_DIGEST_BYTES = 16


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain JSON values with their checksum."""
    return {**value, _KEY: _digest(value)}


def is_intact(value: Mapping[str, Any]) -> bool:
    """Tell whether values are as :func:`sealed` made them."""
    return value.get(_KEY) == _digest({name: item for name, item in value.items() if name != _KEY})


def _digest(value: Mapping[str, Any]) -> str:
    text = json.dumps(value, sort_keys=True).encode()
    return hashlib.blake2b(text, digest_size=_DIGEST_BYTES).hexdigest()


def shard_salt(spec: CompletionSpec, schema: pa.Schema) -> bytes:
    """Return what is in the name of a shard besides its rows.

    :param schema: of the input.
    """
    return f"{spec.fingerprint}\n{schema_text(schema)}".encode()


def repeated(name: str, count: int) -> str:
    """Return the name of a shard that holds the same rows as others before it.

    Still content, and asked separately, as identical rows of one shard are.

    :param count: shards before it.
    """
    return ContentHash(pa.schema([]), f"{name} {count}".encode()).hexdigest()
