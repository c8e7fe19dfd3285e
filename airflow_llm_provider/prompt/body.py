"""The request body, and the fingerprint that is a request's identity across tries, plans and machines."""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any

import orjson

from airflow_llm_provider.prompt.strict import strict_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from airflow_llm_provider.spec import CompletionSpec

#: The two names of the output cap. Servers know one or the other; the older is the more common.
MAX_TOKENS = "max_tokens"
MAX_COMPLETION_TOKENS = "max_completion_tokens"
#: OpenAI's models that refuse the older name, with or without a router's prefix such as ``openai/``.
_NEEDS_NEWER_NAME = re.compile(r"(?:^|/)(?:o[1-9](?:$|-)|gpt-(?:[5-9]|[1-9]\d)(?!\d))")
_FINGERPRINT_BYTES = 16
#: What canonical JSON writes after the text of a user's message that is the last.
_AFTER_TEXT = b',"role":"user"}]'


class RequestShape:
    """What the requests of one spec have in common, worked out once.

    :param spec: the spec.
    """

    def __init__(self, spec: CompletionSpec) -> None:
        self._head = {"model": spec.model}
        self._tail: dict[str, Any] = {_cap_name(spec.model): spec.max_output_tokens}
        if spec.temperature is not None:
            self._tail["temperature"] = spec.temperature
        if spec.output_schema is not None:
            schema, strict = strict_schema(spec.output_schema)
            described = {"name": spec.schema_name, "schema": schema, "strict": strict}
            self._tail["response_format"] = {"type": "json_schema", "json_schema": described}
        self._tail.update(spec.request_params)
        self._hash = _shape_hash(self._head | self._tail)

    def body(self, messages: Sequence[Mapping[str, str]]) -> dict[str, Any]:
        """Return the JSON body of ``POST /chat/completions``."""
        return {**self._head, "messages": list(messages), **self._tail}

    def fingerprint(self, messages: Sequence[Mapping[str, str]]) -> bytes:
        """Return ``fingerprint(self.body(messages))``, in a fraction of the time."""
        return _with_messages(self._hash, messages)

    def fingerprints(self, opening: Sequence[Mapping[str, str]], texts: Iterable[str]) -> list[bytes]:
        """Return the fingerprints of many conversations that differ in the user's message only.

        :param opening: the messages before it.
        :param texts: the user's messages.
        """
        empty = orjson.dumps([*opening, {"content": "", "role": "user"}], option=orjson.OPT_SORT_KEYS)
        begun = self._hash.copy()
        begun.update(empty.removesuffix(_AFTER_TEXT).removesuffix(b'""'))
        # For every row of the dataset, so each name is looked up once.
        found, begin, written, after = [], begun.copy, orjson.dumps, _AFTER_TEXT
        for text in texts:
            digest = begin()
            digest.update(written(text) + after)
            found.append(digest.digest())
        return found


def request_body(spec: CompletionSpec, messages: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """Build the JSON body of ``POST /chat/completions`` for one row."""
    return RequestShape(spec).body(messages)


def fingerprint(body: Mapping[str, Any]) -> bytes:
    """Hash a body to 16 bytes: its canonical JSON without the messages, a line feed, that of the messages.

    Which of its two names the output cap has is a matter of the endpoint's taste, so it does not count.
    """
    shape = {key: value for key, value in body.items() if key != "messages"}
    return _with_messages(_shape_hash(shape), body.get("messages", ()))


def _shape_hash(shape: dict[str, Any]) -> hashlib.blake2b:
    if MAX_COMPLETION_TOKENS in shape:
        shape = {**shape, MAX_TOKENS: shape[MAX_COMPLETION_TOKENS]}
        del shape[MAX_COMPLETION_TOKENS]
    # The standard library here, since orjson refuses integers beyond 64 bits, which a schema's bounds may hold.
    text = json.dumps(shape, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.blake2b(f"{text}\n".encode(), digest_size=_FINGERPRINT_BYTES)


def _with_messages(shape_hash: hashlib.blake2b, messages: Sequence[Mapping[str, Any]]) -> bytes:
    digest = shape_hash.copy()
    digest.update(orjson.dumps(messages, option=orjson.OPT_SORT_KEYS))
    return digest.digest()


def _cap_name(model: str) -> str:
    return MAX_COMPLETION_TOKENS if _NEEDS_NEWER_NAME.search(model) else MAX_TOKENS
