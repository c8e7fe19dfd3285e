"""How one shard went."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from airflow_llm_provider.engine.usage import Usage
from airflow_llm_provider.xcom.json_form import SCHEMA_VERSION, fields_of, plain, usage_of
from airflow_llm_provider.xcom.shard_reference import ShardReference

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True)
class ShardState:
    """How one shard went in one task try.

    :param shard: the shard's reference.
    :param status: ``success``, ``failed`` (the task failed) or ``interrupted`` (stopped from outside).
    :param rows_by_status: rows by row status; sums to the shard's rows when ``status`` is ``success``; rows not
        reached count as ``pending`` otherwise.
    :param reused: rows whose answer was already there, or is that of a row with the same request.
    :param requests: requests sent by this try, retries included.
    :param retries: requests that were a second or later attempt at a row.
    :param usage: tokens billed for this try's requests.
    :param cost_usd: US dollars for this try's requests; ``None``: the price is unknown.
    :param waited_seconds: time that this try's rows, taken together, waited for limits, pauses and an endpoint that
        did not answer.
    :param seconds: wall time of this try.
    :param files: URIs of the files that hold the outcome.
    :param errors: failed rows by error code, at most ten kinds, or failed requests when no row has failed. Codes only,
        no text.
    :param message: why the task failed; ``None`` on success.
    """

    shard: ShardReference
    status: str
    rows_by_status: Mapping[str, int]
    reused: int = 0
    requests: int = 0
    retries: int = 0
    usage: Usage = field(default_factory=Usage)
    cost_usd: float | None = None
    waited_seconds: float = 0.0
    seconds: float = 0.0
    files: tuple[str, ...] = ()
    errors: Mapping[str, int] = field(default_factory=dict)
    message: str | None = None
    schema_version: int = SCHEMA_VERSION

    def to_json(self) -> dict[str, Any]:
        """Return the state as plain JSON values."""
        return dict(plain(dataclasses.asdict(self)))

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Rebuild a state from XCom.

        :raises LLMInputError: when it is not one, or of a newer version.
        """
        known = fields_of(cls, value, "a shard state from a complete task")
        known["shard"] = ShardReference.from_json(known.get("shard"))
        known["usage"] = usage_of(known.get("usage", {}))
        known["files"] = tuple(known.get("files", ()))
        return cls(**known)
