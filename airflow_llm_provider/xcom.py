"""What crosses XCom: small, plain JSON, versioned. Never a checkpoint, never row text.

``split`` returns :class:`ShardReference` dicts, ``complete`` returns a :class:`ShardState` dict (and pushes it under
:data:`SHARD_STATE_KEY` before raising), ``merge`` returns a :class:`RunSummary` dict.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from airflow_llm_provider.engine.usage import Usage
from airflow_llm_provider.errors import LLMInputError

#: Version of the three shapes below. Readers refuse a newer one by name instead of guessing.
SCHEMA_VERSION = 1
#: XCom key of the shard state that a task pushes before it raises.
SHARD_STATE_KEY = "shard_state"
#: XCom key of the run's summary, which ``merge`` also pushes when it fails after writing the output.
SUMMARY_KEY = "run_summary"
#: XCom key under which ``split`` leaves the plan's URI: also there when there are no shards.
PLAN_KEY = "plan"
#: XCom key under which the task that lists input files leaves the list's id.
LISTING_KEY = "listing"
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
        return cls(**_fields(cls, value, "a shard reference from the split task"))


@dataclass(frozen=True, kw_only=True)
class GroupReference:
    """A group of neighbouring input files, for one task to count.

    :param listing: id of the list of all input files.
    :param index: position of the group, from 0.
    :param first: number of its first file in the list, from 0.
    :param files: number of files.
    :param size: bytes of the files.
    """

    listing: str
    index: int
    first: int
    files: int
    size: int
    schema_version: int = SCHEMA_VERSION

    @property
    def label(self) -> str:
        """What a person sees in Airflow's grid."""
        last = self.first + self.files - 1
        files = f"file {last}" if self.files == 1 else f"files {self.first}-{last}"
        return f"{files} · {self.size / 1e6:,.1f} MB"

    def to_json(self) -> dict[str, Any]:
        """Return the reference as plain JSON values."""
        return {**dataclasses.asdict(self), "label": self.label}

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Rebuild a reference from XCom.

        :raises LLMInputError: when it is not one, or of a newer version.
        """
        return cls(**_fields(cls, value, "a group of files from the task that lists them"))


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
        return dict(_plain(dataclasses.asdict(self)))

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Rebuild a state from XCom.

        :raises LLMInputError: when it is not one, or of a newer version.
        """
        known = _fields(cls, value, "a shard state from a complete task")
        known["shard"] = ShardReference.from_json(known.get("shard"))
        known["usage"] = _usage(known.get("usage", {}))
        known["files"] = tuple(known.get("files", ()))
        return cls(**known)


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
        return dict(_plain(dataclasses.asdict(self)))

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Rebuild a summary from XCom or a manifest.

        :raises LLMInputError: when it is not one, or of a newer version.
        """
        known = _fields(cls, value, "a run summary")
        for name in ("usage", "output_usage"):
            known[name] = _usage(known.get(name, {}))
        known["files"] = tuple(known.get("files", ()))
        return cls(**known)


def _fields(cls: type[Any], value: object, what: str) -> dict[str, Any]:
    """Check shape and version, and drop fields a later minor version may have added."""
    if not isinstance(value, Mapping):
        raise LLMInputError(f"expected {what}, a mapping, and got {type(value).__name__}")
    version = value.get("schema_version")
    if version != SCHEMA_VERSION:
        raise LLMInputError(
            f"{what} has schema_version {version!r}, this version reads {SCHEMA_VERSION}: "
            "clear the split task and everything after it"
        )
    names = {f.name: f for f in dataclasses.fields(cls)}
    missing = [
        name
        for name, f in names.items()
        if name not in value and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise LLMInputError(f"{what} lacks {', '.join(missing)}")
    return {name: value[name] for name in names if name in value}


def _usage(value: object) -> Usage:
    if not isinstance(value, Mapping):
        raise LLMInputError(f"expected token counts, a mapping, and got {type(value).__name__}")
    names = [f.name for f in dataclasses.fields(Usage)]
    return Usage(**{name: value[name] for name in names if name in value})


def _plain(value: Any) -> Any:
    """Replace tuples by lists, mappings by dicts and enumerations by their text: what JSON knows.

    A text that is more than a text, such as a row status, would travel as a class that the reader may not load.
    """
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
