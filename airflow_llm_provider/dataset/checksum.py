"""Whether state is still what was written: a checksum in our JSON files, and a shard's name, which is its content."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_llm_provider.dataset.content_hash import ContentHash
from airflow_llm_provider.dataset.schemas import schema_text
from airflow_llm_provider.errors import LLMStateError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_llm_provider.dataset.plan import Plan, ShardEntry
    from airflow_llm_provider.dataset.shards import ShardFile
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


def check_content(shard: ShardFile, plan: Plan, entry: ShardEntry) -> None:
    """Make sure that a shard of a file of its own holds the rows that it is named by.

    :raises LLMStateError: when it does not, naming the remedy.
    """
    if entry.file is not None:
        # Several shards of one file may have become one, whose name is a hash of theirs.
        return
    name = shard.content_hash(shard_salt(plan.spec, plan.input_schema))
    repeats = (repeated(name, count) for count in range(1, len(plan.shards)))
    if name != entry.shard_id and entry.shard_id not in repeats:
        raise LLMStateError(
            f"{shard.uri} does not hold the rows that the split wrote: somebody has changed it, or the storage has. Clear "
            "the split and everything after it, which writes it anew; answers that are already there are kept"
        )


def repeated(name: str, count: int) -> str:
    """Return the name of a shard that holds the same rows as others before it.

    Still content, and asked separately, as identical rows of one shard are.

    :param count: shards before it.
    """
    return ContentHash(pa.schema([]), f"{name} {count}".encode()).hexdigest()
