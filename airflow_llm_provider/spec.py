"""What to ask the model for every row: frozen, validated, and free to import in a DAG file."""

from __future__ import annotations

import copy
import dataclasses
import functools
import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from airflow_llm_provider.errors import LLMInputError

#: Parameters of the request body that the spec itself sets, or that would change what a request is.
_RESERVED_PARAMS = frozenset(
    {
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "model",
        "n",
        "response_format",
        "stream",
        "temperature",
    }
)
#: More than any model reads or writes, and few enough for every sum of them to be exact.
_MOST_TOKENS = 1_000_000_000
#: JSON Schema names become part of the request; OpenAI allows these characters, at most 64.
_SCHEMA_NAME = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, kw_only=True)
class CompletionSpec:
    """One completion request per row of a dataset.

    The spec holds what makes a request *that* request, and nothing else: changing any of it asks every row anew,
    while limits, timeouts, retries and pools live on the operators and re-ask nothing.

    :param model: model name, as the endpoint knows it.
    :param prompt: user message, as a sandboxed Jinja template over the row's columns. Airflow never renders it;
        values are never rendered again; lists and objects print as JSON. Or a function of a row, a dict of its columns,
        that returns the user's message, a list of messages, or ``None`` for a row to leave out. ``None``: given later,
        by ``@task.llm_complete``.
    :param system: system message, sent as it is before the prompt. The same for every row, so providers' prompt
        caches hit.
    :param output_schema: pydantic model class or JSON Schema of an object: its properties become columns.
        ``None``: plain text in ``output_column``.
    :param max_output_tokens: most tokens of one answer; always sent, so that a request's cost has a bound.
    :param temperature: sampling temperature; ``None`` sends none and leaves the endpoint's default.
    :param request_params: further parameters of the request body, sent as they are, such as
        ``{"seed": 7, "reasoning_effort": "low"}``.
    :param context_window: tokens that prompt and answer may take together; rows beyond it are set aside before any
        call. ``None``: unknown, the endpoint decides.
    :param encoding: tiktoken encoding that counts the prompt; ``None``: by the model's name.
    :param output_column: column of a plain-text answer.
    :param metadata_prefix: prefix of the columns that tell how each row went (``llm_status`` and so on).
    :raises LLMInputError: on a value outside its bounds, at DAG parse time.
    """

    model: str
    prompt: str | Callable[[dict[str, Any]], Any] | None = None
    system: str | None = None
    output_schema: Any = None
    max_output_tokens: int = 1024
    temperature: float | None = None
    request_params: Mapping[str, Any] = field(default_factory=dict)
    context_window: int | None = None
    encoding: str | None = None
    output_column: str = "answer"
    metadata_prefix: str = "llm_"

    def __post_init__(self) -> None:
        for name in ("model", "prompt", "output_column", "metadata_prefix"):
            value = getattr(self, name)
            if name == "prompt" and (value is None or callable(value)):
                continue
            if not isinstance(value, str) or not value.strip():
                raise LLMInputError(f"CompletionSpec.{name} is {value!r}: give a non-empty string")
        if self.system is not None and not isinstance(self.system, str):
            raise LLMInputError(
                f"CompletionSpec.system is a {type(self.system).__name__}: give a string or None"
            )
        _check_count("max_output_tokens", self.max_output_tokens)
        if self.context_window is not None:
            _check_count("context_window", self.context_window)
            if self.context_window <= self.max_output_tokens:
                raise LLMInputError(
                    f"CompletionSpec.context_window is {self.context_window}, no more than max_output_tokens "
                    f"({self.max_output_tokens}): no prompt fits; lower max_output_tokens"
                )
        if self.temperature is not None and not (
            _is_number(self.temperature) and 0 <= float(self.temperature) <= 2  # noqa: PLR2004 -- the API's bound
        ):
            raise LLMInputError(
                f"CompletionSpec.temperature is {self.temperature!r}: give a number from 0 to 2, or None"
            )
        self._check_params()
        if self.temperature is not None:
            # 0 and 0.0 are one setting, hence one fingerprint.
            object.__setattr__(self, "temperature", float(self.temperature))
        # A copy in JSON's own types: what is frozen into a plan and read back must be the same spec.
        object.__setattr__(self, "request_params", json.loads(json.dumps(dict(self.request_params))))
        object.__setattr__(self, "output_schema", _as_json_schema(self.output_schema))

    def __repr__(self) -> str:
        """Show a function by its name.

        Airflow keeps this text of a mapped task: an address, another one at every parse of the DAG file, would make a new
        version of the DAG each time.
        """
        shown = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        fields = ", ".join(
            f"{name}={_function_name(value) if callable(value) else repr(value)}"
            for name, value in shown.items()
        )
        return f"{type(self).__name__}({fields})"

    def _check_params(self) -> None:
        if not isinstance(self.request_params, Mapping):
            raise LLMInputError(
                f"CompletionSpec.request_params is a {type(self.request_params).__name__}: give a mapping"
            )
        taken = sorted(_RESERVED_PARAMS & set(self.request_params))
        if taken:
            raise LLMInputError(
                f"CompletionSpec.request_params sets {', '.join(taken)}: the spec sets these itself; "
                "use its own parameters (model, prompt, system, output_schema, max_output_tokens, temperature)"
            )
        try:
            _check_json(dict(self.request_params))
        except (TypeError, ValueError) as error:
            raise LLMInputError(
                f"CompletionSpec.request_params is not JSON ({error}): use plain JSON values"
            ) from error

    @property
    def schema_name(self) -> str:
        """Name of the output schema in the request: its title, in the characters the API allows."""
        title = (self.output_schema or {}).get("title") or "answer"
        return _SCHEMA_NAME.sub("_", str(title))[:64]

    @property
    def fingerprint(self) -> str:
        """Hash of everything that shapes the requests or the columns, 32 hexadecimal digits."""
        text = json.dumps(self.to_json(), sort_keys=True, ensure_ascii=True)
        return hashlib.blake2b(text.encode("ascii"), digest_size=16).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Return the spec as plain JSON values, to be frozen into a plan.

        A function is no value: its messages are in the shards, and the prompt is ``None``.
        """
        frozen = {f.name: copy.deepcopy(getattr(self, f.name)) for f in dataclasses.fields(self)}
        return frozen | {"prompt": self.prompt if isinstance(self.prompt, str) else None}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Rebuild a spec from :meth:`to_json`.

        :raises LLMInputError: when it names a field this version does not know: a newer version wrote it.
        """
        known = {f.name for f in dataclasses.fields(cls)}
        unknown = sorted(set(value) - known)
        if unknown:
            raise LLMInputError(
                f"the frozen spec has unknown fields {', '.join(unknown)}: a newer version of airflow-llm-provider "
                "wrote it; upgrade this one"
            )
        return cls(**value)


def innermost(function: Any) -> Any:
    """Return the function in a ``functools.partial``, or the function itself: what has a name and lines."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _function_name(function: Any) -> str:
    inner = innermost(function)
    return f"<function {getattr(inner, '__qualname__', type(inner).__qualname__)}>"


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _check_count(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST_TOKENS:
        raise LLMInputError(
            f"CompletionSpec.{name} is {value!r}: give a whole number of at least 1, at most {_MOST_TOKENS}"
        )


def _check_json(value: dict[str, Any]) -> None:
    """Raise what ``json`` raises when a request could not hold the value: halves of surrogate pairs are no text."""
    json.dumps(value, allow_nan=False, ensure_ascii=False).encode()


def _as_json_schema(value: Any) -> dict[str, Any] | None:
    """Turn a pydantic model class or a mapping into a JSON Schema of an object, without importing pydantic."""
    if value is None:
        return None
    if isinstance(value, type) and hasattr(value, "model_json_schema"):
        value = value.model_json_schema()
    if not isinstance(value, Mapping):
        raise LLMInputError(
            f"CompletionSpec.output_schema is a {type(value).__name__}: give a pydantic model class, "
            "a JSON Schema as a mapping, or None for plain text"
        )
    try:
        _check_json(dict(value))
        schema: dict[str, Any] = json.loads(json.dumps(dict(value)))
    except (TypeError, ValueError) as error:
        raise LLMInputError(
            f"CompletionSpec.output_schema is not JSON ({error}): use plain JSON values"
        ) from error
    schema = _without_root_reference(schema)
    if (
        schema.get("type") != "object"
        or not isinstance(schema.get("properties"), dict)
        or not schema["properties"]
    ):
        raise LLMInputError(
            "CompletionSpec.output_schema must describe an object with at least one property, since properties become "
            f"columns; its type is {schema.get('type')!r}: wrap the value in an object"
        )
    return schema


def _without_root_reference(schema: dict[str, Any]) -> dict[str, Any]:
    """Put the target in place of a reference at the root, which is how pydantic describes recursive models."""
    pointer = schema.get("$ref")
    if not isinstance(pointer, str) or not pointer.startswith("#/") or "properties" in schema:
        return schema
    target: Any = schema
    for step in pointer.removeprefix("#/").split("/"):
        target = target.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(target, dict) else None
    if not isinstance(target, dict):
        return schema
    return {**target, **{name: value for name, value in schema.items() if name != "$ref"}}
