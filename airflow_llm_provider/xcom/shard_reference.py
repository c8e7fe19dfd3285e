"""Which shard a task is to complete."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Self

from airflow_llm_provider.xcom.json_form import SCHEMA_VERSION, fields_of

#: Most bytes of one shard reference as JSON.
MAX_REFERENCE_BYTES = 300


@dataclass(frozen=True, kw_only=True)
class ShardReference:
    """Where one shard is and how much work it holds.

    :param plan: URI of the plan file.
    :param shard_id: hash of the shard's content.
    :param index: position of the shard in its plan, from 0.
    :param rows: rows of the shard.
    :param tokens: prompt tokens of the shard.
    :param label: text for a person, such as ``shard 0002 · rows 500-999 · 48k tok``.
    """

    plan: str
    shard_id: str
    index: int
    rows: int
    tokens: int
    label: str
    schema_version: int = SCHEMA_VERSION

    def to_json(self) -> dict[str, Any]:
        """Return the reference as plain JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Rebuild a reference from XCom.

        :raises LLMInputError: when it is not one, or of a newer version.
        """
        return cls(**fields_of(cls, value, "a shard reference from the split task"))
