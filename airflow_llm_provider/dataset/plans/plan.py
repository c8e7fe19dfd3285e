"""The plan of a run: what is asked, of which rows, cut into which shards. Frozen when it is written."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from airflow_llm_provider.dataset.arrow.schemas import (
    carried_schema,
    decode_schema,
    encode_schema,
    schema_text,
)
from airflow_llm_provider.dataset.files.urls import public_uri
from airflow_llm_provider.dataset.plans.checksum import is_intact, sealed
from airflow_llm_provider.dataset.plans.shard_entry import ShardEntry
from airflow_llm_provider.errors import LLMInputError, LLMStateError
from airflow_llm_provider.spec import CompletionSpec
from airflow_llm_provider.xcom import MAX_REFERENCE_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_llm_provider.dataset.files.layout import Layout
    from airflow_llm_provider.xcom import ShardReference

#: Version of the plan file. Readers refuse a newer one by name instead of guessing.
PLAN_VERSION = 1
#: Bytes of all shard references together beyond which each does without the plan's URI. No limit: Airflow takes more.
_LONG_REFERENCES_BYTES = 256_000


@dataclass(frozen=True, kw_only=True)
class SplitSettings:
    """How a dataset is cut into shards.

    :param shard_tokens: most prompt tokens of one shard; a row beyond it gets a shard of its own.
    :param max_rows: most rows of one shard; ``None``: any number.
    :param max_bytes: most bytes of one shard's rows; ``None``: any number.
    :param max_shards: most shards; ``None``: any number.
    :param enlarge: raise ``shard_tokens`` when there would be more than ``max_shards``, instead of failing.
    :param order_by: ``"tokens"``: rows of like size share shards; ``None``: neighbours do.
    :param partition_by: columns of the output whose values name its folders.
    :param split_by: ``"file"``: every group of input files is cut by itself; ``None``: the rows as one.
    """

    shard_tokens: int
    max_rows: int | None = None
    max_bytes: int | None = None
    max_shards: int | None = None
    enlarge: bool = False
    split_by: str | None = None
    order_by: str | None = None
    partition_by: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # JSON knows no tuples.
        object.__setattr__(self, "partition_by", tuple(self.partition_by))
        for name in ("shard_tokens", "max_rows", "max_bytes", "max_shards"):
            value = getattr(self, name)
            if value is None and name != "shard_tokens":
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise LLMInputError(f"{name} is {value!r}: give a whole number of at least 1")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is asked, of which rows, cut into which shards.

    :param plan_id: hash of the spec, the schema, the settings and the shards: the same input gives the same plan.
    :param created: ISO time of the split.
    :param versions: versions of the packages that made the plan.
    :param input_schema: columns of the shards.
    :param carried: names of those that the output carries, in its order; ``None``: all.
    :param selection: what was taken of the source: columns, condition, limit, and how much was left out.
    :param source: the input files: URI, bytes and version of each.
    :param estimate: what the split expected the run to take.
    """

    plan_id: str
    created: str
    spec: CompletionSpec
    input_schema: pa.Schema
    shards: tuple[ShardEntry, ...]
    settings: SplitSettings
    carried: tuple[str, ...] | None = None
    selection: Mapping[str, Any] = field(default_factory=dict)
    source: Sequence[Mapping[str, Any]] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    estimate: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Rows of the input, and of the output."""
        return sum(entry.rows for entry in self.shards)

    @property
    def tokens(self) -> int:
        """Prompt tokens of the rows that will be sent."""
        return sum(entry.tokens for entry in self.shards)

    @property
    def carried_schema(self) -> pa.Schema:
        """The input's columns that the output carries."""
        return carried_schema(self.input_schema, self.carried)

    def entry(self, shard_id: str) -> ShardEntry:
        """Return one shard of the plan."""
        for entry in self.shards:
            if entry.shard_id == shard_id:
                return entry
        raise LLMInputError(
            f"plan {self.plan_id} has no shard {shard_id}: clear the split and everything after it"
        )

    def references(self, layout: Layout) -> list[ShardReference]:
        """Return what crosses XCom for each shard.

        The plan is named by its URI, or, when that would make one reference too long or all of them together
        long, relative to the destination.
        """
        for plan in (layout.uri(layout.plan(self.plan_id)), layout.plan(self.plan_id)):
            references = [entry.reference(plan) for entry in self.shards]
            # As Airflow writes them: with spaces, and \u escapes for all that is not ASCII.
            sizes = [len(json.dumps(reference.to_json())) for reference in references]
            if max(sizes, default=0) <= MAX_REFERENCE_BYTES and sum(sizes) <= _LONG_REFERENCES_BYTES:
                break
        return references

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain JSON values."""
        return {
            "plan_version": PLAN_VERSION,
            "plan_id": self.plan_id,
            "created": self.created,
            "versions": dict(self.versions),
            "spec": self.spec.to_json(),
            "settings": dataclasses.asdict(self.settings),
            "estimate": dict(self.estimate),
            "rows": self.rows,
            "tokens": self.tokens,
            "columns": {field.name: str(field.type) for field in self.input_schema},
            "input_schema": encode_schema(self.input_schema),
            "carried": None if self.carried is None else list(self.carried),
            "selection": dict(self.selection),
            "source": [dict(file) for file in self.source],
            "shards": [dataclasses.asdict(entry) for entry in self.shards],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Rebuild a plan.

        :raises LLMStateError: when it is of a newer version.
        """
        if value["plan_version"] != PLAN_VERSION:
            raise LLMStateError(
                f"the plan has version {value['plan_version']!r}, this version of airflow-llm-provider reads "
                f"{PLAN_VERSION}: clear the split and everything after it"
            )
        schema = decode_schema(value["input_schema"])
        return cls(
            plan_id=value["plan_id"],
            created=value["created"],
            versions=value["versions"],
            spec=CompletionSpec.from_json(value["spec"]),
            settings=SplitSettings(**value["settings"]),
            estimate=value["estimate"],
            input_schema=schema,
            carried=None if value["carried"] is None else tuple(value["carried"]),
            selection=value["selection"],
            source=tuple(value["source"]),
            shards=tuple(map(ShardEntry.from_json, value["shards"])),
        )


def plan_id_of(
    spec: CompletionSpec,
    schema: pa.Schema,
    settings: SplitSettings,
    shards: Sequence[ShardEntry],
    *,
    carried: Sequence[str] | None = None,
) -> str:
    """Hash what makes a plan that plan: not when it was made, nor which answers there were already.

    A condition is not in it by its words, but by the rows that it took.
    """
    content: dict[str, Any] = {
        "spec": spec.fingerprint,
        "schema": schema_text(schema),
        "settings": dataclasses.asdict(settings),
        "shards": [[entry.shard_id, entry.rows, entry.tokens] for entry in shards],
    }
    if carried is not None:
        content["carried"] = list(carried)
    # 64 bits tell the few plans of one destination apart, and keep the references that cross XCom short.
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=8).hexdigest()


def write_plan(layout: Layout, plan: Plan) -> str:
    """Write the plan and return its URI."""
    name = layout.plan(plan.plan_id)
    # The standard library, and ASCII: bounds may be integers beyond 64 bits, a prompt may hold half a surrogate pair.
    layout.storage.write_bytes(name, json.dumps(sealed(plan.to_json()), indent=2).encode())
    return layout.uri(name)


def read_plan(layout: Layout, plan_id: str) -> Plan:
    """Read a plan.

    :raises LLMStateError: when it is missing, unreadable or of a newer version.
    """
    name = layout.plan(plan_id)
    data = layout.storage.read_bytes(name)
    uri = public_uri(layout.uri(name))
    if data is None:
        raise LLMStateError(f"the plan {uri} is missing: clear the split and everything after it")
    try:
        value = json.loads(data)
        plan = Plan.from_json(value)
    except (ValueError, TypeError, KeyError, pa.ArrowException) as error:
        if isinstance(error, LLMInputError):
            raise
        raise LLMStateError(
            f"the plan {uri} is damaged ({type(error).__name__}): clear the split and everything after it"
        ) from error
    if plan.plan_id != plan_id or not is_intact(value):
        raise LLMStateError(
            f"the plan {uri} is not what the split wrote: clear the split and everything after it; answers are kept"
        )
    return plan
