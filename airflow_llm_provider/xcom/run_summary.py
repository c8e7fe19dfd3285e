"""How a whole run went."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from airflow_llm_provider.engine.usage import Usage
from airflow_llm_provider.xcom.json_form import SCHEMA_VERSION, fields_of, plain, usage_of

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """How a whole run went.

    Counts of rows, ``output_usage`` and ``output_cost_usd`` describe the output, whenever its answers were paid for;
    ``requests``, ``retries``, ``reused``, ``usage``, ``cost_usd`` and ``seconds`` describe what the last try of each
    shard did, so a cleared run that reused everything shows 0 requests.

    :param plan_id: hash of the plan.
    :param destination: URI of the output folder.
    :param manifest: URI of the manifest.
    :param rows: rows of the output, equal to the rows of the input.
    :param rows_by_status: rows by row status; sums to ``rows``.
    :param shards: shards of the plan.
    :param files: URIs of the output files, in row order, the first hundred of them; the manifest names all.
    :param rejects: URI of the file of rows without an answer; ``None``: every row has one.
    """

    plan_id: str
    destination: str
    manifest: str
    rows: int
    rows_by_status: Mapping[str, int]
    shards: int
    reused: int = 0
    requests: int = 0
    retries: int = 0
    usage: Usage = field(default_factory=Usage)
    cost_usd: float | None = None
    output_usage: Usage = field(default_factory=Usage)
    output_cost_usd: float | None = None
    seconds: float = 0.0
    files: tuple[str, ...] = ()
    rejects: str | None = None
    schema_version: int = SCHEMA_VERSION

    @property
    def succeeded(self) -> int:
        """Rows with an answer."""
        return self.rows_by_status.get("success", 0)

    def to_json(self) -> dict[str, Any]:
        """Return the summary as plain JSON values."""
        return dict(plain(dataclasses.asdict(self)))

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Rebuild a summary from XCom or a manifest.

        :raises LLMInputError: when it is not one, or of a newer version.
        """
        known = fields_of(cls, value, "a run summary")
        for name in ("usage", "output_usage"):
            known[name] = usage_of(known.get(name, {}))
        known["files"] = tuple(known.get("files", ()))
        return cls(**known)
