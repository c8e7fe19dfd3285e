"""From a refused request to the error that the engine understands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_llm_provider.clients.error_body import ErrorBody, load_json, read_error
from airflow_llm_provider.clients.meaning import Meaning, meaning_of
from airflow_llm_provider.clients.rate_headers import exhausted_wait, parse_wait, rate_hint, retry_after
from airflow_llm_provider.engine.call import TERMINAL_KINDS, CallError, FailureKind
from airflow_llm_provider.prompt import clean_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_llm_provider.clients.redact import Redactor

_MESSAGE_LENGTH = 300
_ID_LENGTH = 200


def refused(
    status: int, headers: Mapping[str, str], raw: bytes, *, now: float, redact: Redactor
) -> CallError:
    """Turn an HTTP answer that is no success into the error it means.

    :param headers: found by name in lower case.
    :param now: epoch seconds, for dates in headers.
    """
    try:
        error = read_error(load_json(raw))
    except ValueError:
        error = None
    meaning = meaning_of(status, error, headers)
    return call_error(status, error or ErrorBody(), meaning, headers=headers, now=now, redact=redact)


def call_error(
    status: int,
    error: ErrorBody,
    meaning: Meaning,
    *,
    headers: Mapping[str, str],
    now: float,
    redact: Redactor,
) -> CallError:
    """Build the error, with a message that holds no secret and no row's text."""
    code = redact(meaning.code or error.code or f"http_{status}")
    about = f"HTTP {status}"
    about += f", {code}" if code != f"http_{status}" else ""
    about += f", parameter {redact(error.param)}" if error.param else ""
    if meaning.kind in TERMINAL_KINDS:
        said = " ".join(redact(error.message).split())[:_MESSAGE_LENGTH]
        about += (f": {said}" if said else "") + (f" ({meaning.remedy})" if meaning.remedy else "")
    hint = rate_hint(headers, now=now)
    wait = retry_after(headers, now=now)
    if wait is None and meaning.kind is FailureKind.RATE_LIMITED:
        wait = parse_wait(error.retry_delay, now=now)
        wait = exhausted_wait(hint) if wait is None else wait
    return CallError(
        meaning.kind,
        code,
        about,
        row_status=meaning.row_status,
        status_code=status,
        retry_after=wait,
        request_id=request_id(headers),
        rate=hint,
    )


def request_id(headers: Mapping[str, str]) -> str | None:
    """Find the endpoint's id of the request."""
    for name in ("x-request-id", "apim-request-id", "request-id", "cf-ray"):
        if headers.get(name):
            return clean_text(headers[name][:_ID_LENGTH])
    return None
