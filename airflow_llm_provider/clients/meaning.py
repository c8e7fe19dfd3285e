"""What a refused request means: by HTTP status and by the codes, types and parameters in the body.

The server's free text decides only where a server sends nothing else, and then either what merely ends the row, or
by how the text *begins*, where no row's text can stand.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

from airflow_llm_provider.clients.redact import public_url
from airflow_llm_provider.engine.call import FailureKind
from airflow_llm_provider.engine.status import RowStatus

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_llm_provider.clients.error_body import ErrorBody

_ROW, _CONFIGURATION, _QUOTA = FailureKind.ROW, FailureKind.CONFIGURATION, FailureKind.QUOTA
_AUTHENTICATION, _OVERLOADED = FailureKind.AUTHENTICATION, FailureKind.OVERLOADED
_URL_LENGTH = 200


@dataclass(frozen=True)
class Meaning:
    """What a refusal means.

    :param kind: what it means for everything that follows.
    :param row_status: how the row ends when ``kind`` is ``ROW``.
    :param code: code to count it under; ``None``: the server's.
    :param remedy: what a person can do.
    """

    kind: FailureKind
    row_status: RowStatus = RowStatus.REJECTED
    code: str | None = None
    remedy: str | None = None


_TOO_LONG = Meaning(_ROW, RowStatus.CONTEXT_TOO_LONG, code="context_length_exceeded")
_FILTERED = Meaning(_ROW, RowStatus.CONTENT_FILTER, code="content_filter")
_TOO_LARGE = Meaning(_ROW, RowStatus.REQUEST_TOO_LARGE)
_NO_CREDIT = Meaning(_QUOTA, remedy="add credit or raise the budget in the provider's billing settings")
_WRONG_KEY = Meaning(_AUTHENTICATION, remedy="check the connection's key and what it may use")
_WRONG_MODEL = Meaning(_CONFIGURATION, remedy="check the model's name and that this account may use it")
_WRONG_PARAMETER = Meaning(_CONFIGURATION, remedy="change or drop the parameter in the CompletionSpec")
_WRONG_URL = Meaning(
    _CONFIGURATION,
    code="wrong_url",
    remedy="check the connection's base URL: it is the part before /chat/completions and mostly ends in /v1",
)

#: Codes and types that settle the matter whatever 4xx status they come with.
_BY_CODE: dict[str, Meaning] = {
    **dict.fromkeys(
        (
            "context_length_exceeded",
            "exceed_context_size_error",
            "context_window_exceeded",
            "tokens_limit_reached",
        ),
        _TOO_LONG,
    ),
    **dict.fromkeys(("string_above_max_length", "model_max_prompt_tokens_exceeded"), _TOO_LONG),
    **dict.fromkeys(
        ("content_filter", "responsibleaipolicyviolation", "content_policy_violation", "invalid_prompt"),
        _FILTERED,
    ),
    **dict.fromkeys(("moderation_blocked", "data_inspection_failed", "cyber_policy_violation"), _FILTERED),
    **dict.fromkeys(("request_too_large", "payload_too_large"), _TOO_LARGE),
    **dict.fromkeys(("insufficient_quota", "billing_hard_limit_reached", "billing_not_active"), _NO_CREDIT),
    **dict.fromkeys(
        ("budget_exceeded", "insufficient_balance", "insufficient_credits", "billing_error"), _NO_CREDIT
    ),
    **dict.fromkeys(("invalid_api_key", "authentication_error", "auth_error", "api_key_invalid"), _WRONG_KEY),
    **dict.fromkeys(("account_deactivated", "access_terminated", "permission_error"), _WRONG_KEY),
    **dict.fromkeys(
        ("model_not_found", "deploymentnotfound", "invalid_model", "model_not_available"), _WRONG_MODEL
    ),
    "unknown_url": _WRONG_URL,
    # Groq: the model's answer did not match the schema; another answer may.
    "json_validate_failed": Meaning(FailureKind.BAD_RESPONSE),
}
#: Codes that blame a parameter, once it is clear that the parameter is not the messages.
_PARAMETER_CODES = frozenset(
    {
        "unsupported_parameter",
        "unsupported_value",
        "unknown_parameter",
        "extra_forbidden",
        "invalid_parameter",
    }
)
_BY_STATUS: dict[int, Meaning] = {
    401: _WRONG_KEY,
    402: _NO_CREDIT,
    403: _WRONG_KEY,
    404: _WRONG_MODEL,
    405: _WRONG_URL,
    407: Meaning(_AUTHENTICATION, remedy="the proxy between here and the endpoint asks for a login"),
    408: Meaning(_OVERLOADED),
    409: Meaning(_OVERLOADED),
    410: _WRONG_MODEL,
    413: _TOO_LARGE,
    423: Meaning(_OVERLOADED),
    424: Meaning(_OVERLOADED),
    425: Meaning(_OVERLOADED),
    429: Meaning(FailureKind.RATE_LIMITED),
    499: Meaning(_OVERLOADED),
    **dict.fromkeys(
        (406, 411, 415, 426, 428, 431), Meaning(_CONFIGURATION, remedy="check the connection's headers")
    ),
}
#: What Gemini calls every limit that is reached, those of a minute above all.
_USED_UP = "resource_exhausted"
_CAPS = frozenset({"max_tokens", "max_completion_tokens"})
#: What holds the row's text: a complaint about it is about the row.
_CONTENT_PARAM = re.compile(r"(?:messages|prompt|input|input_tokens|content)(?![A-Za-z_])")
#: Texts of servers that send no code. They end one row at most, so they may stand anywhere.
_TOO_LONG_TEXT = re.compile(
    r"maximum context length|max(?:imum)? context|context (?:length|window|size).{0,80}(?:exceed|too|longer|larger)"
    r"|exceed.{0,80}context (?:length|window|size)|ContextWindowExceeded|(?:prompt|input) is too long|prompt too long",
    re.IGNORECASE | re.DOTALL,
)
_FILTERED_TEXT = re.compile(r"content management policy|ContentPolicyViolation|content policy", re.IGNORECASE)
#: The same for what ends everything: only at the beginning, where the row's text cannot stand.
_NO_CREDIT_TEXT = re.compile(
    r"(?:your )?(?:credit balance is too low|insufficient (?:credit|balance|fund|quota))|you exceeded your current quota",
    re.IGNORECASE,
)
_WRONG_URL_TEXT = re.compile(
    r"(?:404 )?(?:page |file )?not found\W*$|invalid url|unknown request url", re.IGNORECASE
)
_REQUEST_TOO_LARGE_TEXT = re.compile(r"request too large for", re.IGNORECASE)
_PARAMETER_TEXT = re.compile(
    r"(?:(?:unsupported|unrecognized|unknown|invalid|extra)[a-z ]{0,40}:? ?)?[`'\"]?(?P<name>[a-z_]{1,40})[`'\"]?"
    r"(?: (?:must|is not|does not|should|cannot|isn't)\b|$|[.:,])",
    re.IGNORECASE,
)

#: Parameters that every request may carry; a text that begins with one of them blames the request, not the row.
_PARAMETERS = frozenset(
    {
        *(
            "temperature",
            "top_p",
            "max_tokens",
            "max_completion_tokens",
            "response_format",
            "seed",
            "n",
            "stop",
        ),
        *(
            "frequency_penalty",
            "presence_penalty",
            "reasoning_effort",
            "logprobs",
            "top_logprobs",
            "logit_bias",
        ),
        *("service_tier", "user", "store", "metadata", "tools", "tool_choice", "verbosity", "stream"),
    }
)


def meaning_of(status: int, error: ErrorBody | None, headers: Mapping[str, str]) -> Meaning:
    """Decide what a refusal means.

    :param error: what the body says; ``None``: it is no JSON error.
    :param headers: found by name in lower case.
    """
    if HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST:
        return Meaning(
            _CONFIGURATION, code="redirected", remedy=f"the base URL has moved{_moved_to(headers)}"
        )
    if error is None:
        return _without_body(status)
    broken = status >= HTTPStatus.INTERNAL_SERVER_ERROR
    known = known_by_code(error)
    if known is not None and (known.kind is _ROW or not broken):
        return known
    if broken:
        return Meaning(_OVERLOADED)
    if status in (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY):
        return _bad_request(error)
    return _by_text(status, error) or _BY_STATUS.get(status, Meaning(_ROW))


def known_by_code(error: ErrorBody) -> Meaning | None:
    """Return what a body's codes settle, whatever status they come with; ``None``: nothing."""
    return next((_BY_CODE[code.lower()] for code in error.codes if code.lower() in _BY_CODE), None)


def _by_text(status: int, error: ErrorBody) -> Meaning | None:
    """Tell apart what shares a status and has no code of its own."""
    if status == HTTPStatus.NOT_FOUND and not error.param and _WRONG_URL_TEXT.match(error.message):
        return _WRONG_URL
    if status == HTTPStatus.FORBIDDEN and error.flagged:
        return _FILTERED
    if status == HTTPStatus.TOO_MANY_REQUESTS and _REQUEST_TOO_LARGE_TEXT.match(error.message):
        return _TOO_LARGE  # one request beyond a minute's limit: no wait will mend it
    if (
        status in (HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS)
        and not _passes(error)
        and _NO_CREDIT_TEXT.match(error.message)
    ):
        return _NO_CREDIT
    too_long = status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE and _TOO_LONG_TEXT.search(error.message)
    return _TOO_LONG if too_long else None


def _passes(error: ErrorBody) -> bool:
    """Tell a used-up minute from a used-up account: Gemini says "you exceeded your current quota" to both."""
    return error.retry_delay is not None or any(code.lower() == _USED_UP for code in error.codes)


def _without_body(status: int) -> Meaning:
    """Judge an answer that is no JSON: some proxy's or web server's page."""
    if status in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED):
        return _WRONG_URL
    if status == HTTPStatus.FORBIDDEN:
        # A firewall that dislikes one row's text answers like this, so it must not stop the others.
        return Meaning(FailureKind.BAD_RESPONSE, code="forbidden_page")
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return Meaning(_OVERLOADED)
    return _BY_STATUS.get(status, Meaning(_ROW))


def _bad_request(error: ErrorBody) -> Meaning:
    param = error.param
    about_row = param is None or _CONTENT_PARAM.match(param) is not None
    # vLLM blames the output cap for a prompt that leaves no room for it.
    if (about_row or param in _CAPS) and _TOO_LONG_TEXT.search(error.message):
        return _TOO_LONG
    if not about_row:
        return _WRONG_MODEL if param == "model" else _WRONG_PARAMETER
    if _FILTERED_TEXT.search(error.message):
        return _FILTERED
    if param is None and (_PARAMETER_CODES & set(error.codes) or parameter_named(error)):
        return _WRONG_PARAMETER
    return _NO_CREDIT if param is None and _NO_CREDIT_TEXT.match(error.message) else Meaning(_ROW)


def parameter_named(error: ErrorBody) -> str | None:
    """Return the request parameter that an error blames, by its field or by how its text begins."""
    if error.param is not None:
        return error.param
    found = _PARAMETER_TEXT.match(error.message.strip())
    return found["name"].lower() if found is not None and found["name"].lower() in _PARAMETERS else None


def _moved_to(headers: Mapping[str, str]) -> str:
    try:
        # The login and the query may hold what is nobody's business.
        target = public_url(headers.get("location", ""))[:_URL_LENGTH]
    except ValueError:
        target = ""
    return f" to {target}: use that" if target else ": ask its operator where"
