"""A completion out of the body of an HTTP 200, or the reason why there is none in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_llm_provider.clients.classify import call_error, request_id
from airflow_llm_provider.clients.error_body import ErrorBody, load_json, read_error
from airflow_llm_provider.clients.meaning import Meaning, known_by_code, meaning_of
from airflow_llm_provider.clients.rate_headers import rate_hint
from airflow_llm_provider.engine.call import CallError, FailureKind, Reply
from airflow_llm_provider.engine.usage import Usage
from airflow_llm_provider.prompt import clean_text

if TYPE_CHECKING:
    from airflow_llm_provider.clients.redact import Redactor

#: More tokens than any request can have, and as many as a column of 32 bits holds.
_MOST_TOKENS = 2**31 - 1
_OK = 200
_LONGEST_NAME = 200


def read_completion(raw: bytes, headers: Mapping[str, str], *, now: float, redact: Redactor) -> Reply:
    """Read the completion.

    :param headers: found by name in lower case.
    :param now: epoch seconds, for dates in headers.
    :raises CallError: when there is none: HTML, an error object, no choices, cut JSON.
    """
    try:
        body = load_json(raw)
        choice = _first_choice(body)
    except ValueError:
        raise _bad("not_json", "an answer that is no JSON", headers) from None
    error = _error_in(body, choice)
    if error is not None:
        raise _error_in_success(error, headers, now=now, redact=redact)
    if choice is None:
        raise _bad("no_choices", "an answer without choices", headers)
    message = choice.get("message", choice)  # old completions have the text in the choice itself
    if not isinstance(message, Mapping):
        raise _bad("no_message", "a choice without a message", headers)
    try:
        text, refusal = _texts(message)
    except ValueError:
        raise _bad("bad_content", "a message whose content is neither text nor parts", headers) from None
    return Reply(
        text=text,
        refusal=refusal,
        finish_reason=_name(choice.get("finish_reason")),
        usage=_usage(body.get("usage")),
        model=_name(body.get("model")),
        request_id=request_id(headers) or _name(body.get("id")),
        rate=rate_hint(headers, now=now),
    )


def _first_choice(body: Any) -> Mapping[str, Any] | None:
    choices = body.get("choices") if isinstance(body, Mapping) else None
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, Mapping) else None


def _error_in(body: Any, choice: Mapping[str, Any] | None) -> ErrorBody | None:
    """Find an error in a successful answer: in place of the choices or, as OpenRouter has it, inside one."""
    if choice is None:
        return read_error(body)
    return read_error(choice) if isinstance(choice.get("error"), Mapping) else None


def _error_in_success(
    error: ErrorBody, headers: Mapping[str, str], *, now: float, redact: Redactor
) -> CallError:
    if error.status is not None:
        meaning = meaning_of(error.status, error, headers)
    else:
        meaning = known_by_code(error) or Meaning(FailureKind.BAD_RESPONSE, code=error.code or "error_in_200")
    return call_error(error.status or _OK, error, meaning, headers=headers, now=now, redact=redact)


def _bad(code: str, what: str, headers: Mapping[str, str]) -> CallError:
    return CallError(
        FailureKind.BAD_RESPONSE,
        code,
        f"HTTP 200 with {what}",
        status_code=_OK,
        request_id=request_id(headers),
    )


def _texts(message: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return content and refusal.

    :raises ValueError: when the content has a shape that nobody documents.
    """
    content = message.get("content", message.get("text"))
    refusal = message.get("refusal")
    if isinstance(content, list):
        parts = [part for part in content if isinstance(part, Mapping)]
        refused = [part["refusal"] for part in parts if isinstance(part.get("refusal"), str)]
        texts = [part["text"] for part in parts if isinstance(part.get("text"), str)]
        content = "".join(texts) if texts else None
        refusal = refused[0] if refused and not refusal else refusal
    elif isinstance(content, Mapping):  # servers that hand out the parsed answer of a JSON mode
        content = json.dumps(content, ensure_ascii=False)
    elif content is not None and not isinstance(content, str):
        raise ValueError("neither text nor parts")
    return (
        None if content is None else clean_text(content),
        clean_text(refusal) if isinstance(refusal, str) and refusal else None,
    )


def _usage(value: Any) -> Usage | None:
    if not isinstance(value, Mapping):
        return None
    prompt, completion = _tokens(value.get("prompt_tokens")), _tokens(value.get("completion_tokens"))
    if prompt is None and completion is None:
        return None
    details = value.get("prompt_tokens_details")
    cached = _tokens(details.get("cached_tokens")) if isinstance(details, Mapping) else None
    if cached is None:
        cached = _tokens(value.get("prompt_cache_hit_tokens"))  # DeepSeek
    prompt = prompt or 0
    return Usage(
        prompt_tokens=prompt, completion_tokens=completion or 0, cached_tokens=min(cached or 0, prompt)
    )


def _tokens(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return int(value) if 0 <= value <= _MOST_TOKENS else None


def _name(value: Any) -> str | None:
    return clean_text(value)[:_LONGEST_NAME] if isinstance(value, str) and value else None
