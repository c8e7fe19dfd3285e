"""The columns that a run adds to its input, fixed by the spec before the first call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_llm_provider.dataset.outcomes.json_schema import TEXT, MisfitError, Shape, shape_of
from airflow_llm_provider.errors import LLMInputError

if TYPE_CHECKING:
    from airflow_llm_provider.spec import CompletionSpec

#: Names that begin like this are our own, in shards and results.
RESERVED_PREFIX = "_llm_"
#: How each row went, without the spec's prefix.
METADATA: tuple[tuple[str, pa.DataType], ...] = (
    ("status", pa.string()),
    ("model", pa.string()),
    ("finish_reason", pa.string()),
    ("prompt_tokens", pa.int64()),
    ("completion_tokens", pa.int64()),
    ("cached_tokens", pa.int64()),
    ("cost_usd", pa.float64()),
    ("attempts", pa.int32()),
    ("latency_ms", pa.float64()),
    ("request_id", pa.string()),
    ("conn_id", pa.string()),
    ("error", pa.string()),
)


class OutputColumns:
    """Answer and metadata columns of a spec; all of them nullable.

    :param spec: what is asked.
    """

    def __init__(self, spec: CompletionSpec) -> None:
        self._spec = spec
        self._shapes = _answer_shapes(spec)
        #: One column per property of the output schema, or one for plain text.
        self.answer: tuple[pa.Field, ...] = tuple(pa.field(name, s.type) for name, s in self._shapes.items())
        #: How each row went.
        self.metadata: tuple[pa.Field, ...] = tuple(
            pa.field(self.metadata_name(name), kind) for name, kind in METADATA
        )

    def metadata_name(self, name: str) -> str:
        """Return the column of one metadata value, such as ``llm_status`` for ``status``."""
        return f"{self._spec.metadata_prefix}{name}"

    def output_schema(self, input_schema: pa.Schema) -> pa.Schema:
        """Return the schema of the output: the input's columns untouched, then ours."""
        return pa.schema([*input_schema, *self.answer, *self.metadata])

    def rejects_schema(self, input_schema: pa.Schema) -> pa.Schema:
        """Return the schema of the rows without an answer: the output's, and the model's words."""
        return self.output_schema(input_schema).append(pa.field(self.metadata_name("text"), pa.string()))

    def convert(self, answer: Any) -> tuple[Any, ...]:
        """Turn a parsed answer into one value per answer column.

        :raises MisfitError: when a value does not fit its column; the message holds no value.
        """
        if self._spec.output_schema is None:
            return tuple(shape.convert(answer) for shape in self._shapes.values())
        if not isinstance(answer, Mapping):
            raise MisfitError(f"the answer is a {type(answer).__name__} where an object belongs")
        values = []
        for name, shape in self._shapes.items():
            try:
                values.append(shape.convert(answer.get(name)))
            except MisfitError as error:
                raise MisfitError(f"property {name!r}: {error}") from error
        return tuple(values)

    def check(self, input_schema: pa.Schema, *, others: Iterable[str] = ()) -> None:
        """Make sure that no two columns share a name.

        Names are compared without regard to case, as Spark, DuckDB and most warehouses do.

        :param input_schema: the input's columns that the output carries.
        :param others: names of input columns that only the shards carry.
        :raises LLMInputError: naming the columns and the remedy.
        """
        taken = {name.casefold(): name for name in input_schema.names}
        reserved = sorted(
            name for name in {*taken.values(), *others} if name.casefold().startswith(RESERVED_PREFIX)
        )
        if reserved:
            raise LLMInputError(
                f"input columns {_listed(reserved)} begin with {RESERVED_PREFIX!r}, which this package keeps for "
                "itself: rename them in the source"
            )
        self._check_own_names()
        answers = [field.name for field in self.answer]
        clash = [taken[name.casefold()] for name in answers if name.casefold() in taken]
        if clash:
            remedy = (
                "output_column="
                if self._spec.output_schema is None
                else "other property names in output_schema="
            )
            raise LLMInputError(
                f"the input already has columns named as the answer columns, {_listed(clash)}: give the spec {remedy}"
            )
        ours = [*(field.name for field in self.metadata), self.metadata_name("text")]
        clash = [taken[name.casefold()] for name in ours if name.casefold() in taken]
        if clash:
            raise LLMInputError(
                f"the input already has the columns {_listed(clash)}: give the spec another metadata_prefix="
            )

    def _check_own_names(self) -> None:
        if self._spec.metadata_prefix.casefold().startswith(RESERVED_PREFIX):
            raise LLMInputError(
                f"metadata_prefix is {self._spec.metadata_prefix!r}: {RESERVED_PREFIX!r} is kept for this package; "
                "give another, such as 'llm_'"
            )
        seen: dict[str, str] = {}
        for field in self.answer:
            first = seen.setdefault(field.name.casefold(), field.name)
            if first != field.name:
                raise LLMInputError(
                    f"the answer columns {_listed([first, field.name])} differ in case only, which most readers do not "
                    "tell apart: give the spec other property names"
                )
        ours = {self.metadata_name(name).casefold() for name, _ in METADATA} | {
            self.metadata_name("text").casefold()
        }
        clash = [
            field.name
            for field in self.answer
            if field.name.casefold() in ours or field.name.casefold().startswith(RESERVED_PREFIX)
        ]
        if clash:
            remedy = "output_column=" if self._spec.output_schema is None else "property names"
            raise LLMInputError(
                f"the answer columns {_listed(clash)} have names that this package uses: give the spec other {remedy} "
                "or another metadata_prefix="
            )


def _answer_shapes(spec: CompletionSpec) -> dict[str, Shape]:
    if spec.output_schema is None:
        return {spec.output_column: TEXT}
    return {
        name: shape_of(part, spec.output_schema) for name, part in spec.output_schema["properties"].items()
    }


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)
