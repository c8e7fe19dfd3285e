"""What stops a run at once, in words that say what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_llm_provider.engine.call import CallError, FailureKind
from airflow_llm_provider.engine.echo import echoes
from airflow_llm_provider.errors import (
    LLMAuthenticationError,
    LLMConfigurationError,
    LLMQuotaError,
    LLMTerminalError,
)

if TYPE_CHECKING:
    from airflow_llm_provider.engine.call import Request
    from airflow_llm_provider.engine.limiter import AccountHaltedError

_MEANINGS: dict[FailureKind, tuple[type[LLMTerminalError], str, str]] = {
    FailureKind.AUTHENTICATION: (
        LLMAuthenticationError,
        "The endpoint does not accept the key, or the key may not use this model",
        "Check the key, the organisation and the project of the connection",
    ),
    FailureKind.QUOTA: (
        LLMQuotaError,
        "The account has no credit left",
        "Top up or raise the limit in the provider's billing settings; waiting does not help",
    ),
    FailureKind.CONFIGURATION: (
        LLMConfigurationError,
        "The endpoint refuses a parameter that every request carries, or does not know the model",
        "Check model, parameters and base URL",
    ),
}
#: What a wrong setting means that shows before the endpoint has said a word.
_UNASKED = "The endpoint cannot be asked as the connection is set"
_THEN = "then run again: every answer so far is kept, and only rows without one are asked."


#: In place of an endpoint's words that repeat the request.
_WITHHELD = "its words repeat the request and are withheld"


def terminal_error(
    error: CallError, *, request: Request | None = None, account: str | None = None
) -> LLMTerminalError:
    """Return what to raise for a failure of one of the terminal kinds.

    :param request: whose messages the endpoint's words must not repeat.
    :param account: name of the account it happened on.
    """
    if request is not None and (echoes(error.message, request.body) or echoes(error.code, request.body)):
        error = _without_words(error, request)
    raised_as, what, remedy = _MEANINGS[error.kind]
    if error.kind is FailureKind.CONFIGURATION and error.status_code is None:
        what = _UNASKED
    status = "no HTTP status" if error.status_code is None else f"HTTP {error.status_code}"
    request_id = f", request {error.request_id}" if error.request_id else ""
    raised = raised_as(
        f"{_on(account)}{what} ({status}, {error.code}{request_id}): {error.message.rstrip('.')}. {remedy}, {_THEN}"
    )
    raised.__cause__ = error
    return raised


def halted_error(error: AccountHaltedError, *, account: str | None = None) -> LLMTerminalError:
    """Return what to raise when somebody else on the account met a failure of one of the terminal kinds."""
    raised_as, what, remedy = _MEANINGS[error.kind]
    raised = raised_as(
        f"{_on(account)}{what}: another task on this account found out, so nothing was sent. {remedy}, {_THEN}"
    )
    raised.__cause__ = error
    return raised


def _on(account: str | None) -> str:
    return f"Account {account}: " if account else ""


def _without_words(error: CallError, request: Request) -> CallError:
    """Return the error without what the endpoint said, nor what it was raised from: a log shows that too."""
    code = f"http_{error.status_code}" if echoes(error.code, request.body) else error.code
    return CallError(
        error.kind,
        code,
        _WITHHELD,
        row_status=error.row_status,
        status_code=error.status_code,
        retry_after=error.retry_after,
        request_id=error.request_id,
        rate=error.rate,
    )
