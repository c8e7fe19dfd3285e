"""What stops a run at once, in words that say what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_llm_provider.engine.call import FailureKind
from airflow_llm_provider.errors import (
    LLMAuthenticationError,
    LLMConfigurationError,
    LLMQuotaError,
    LLMTerminalError,
)

if TYPE_CHECKING:
    from airflow_llm_provider.engine.call import CallError
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
_THEN = "then run again: every answer so far is kept, and only rows without one are asked."


def terminal_error(error: CallError) -> LLMTerminalError:
    """Return what to raise for a failure of one of the terminal kinds."""
    raised_as, what, remedy = _MEANINGS[error.kind]
    status = "no HTTP status" if error.status_code is None else f"HTTP {error.status_code}"
    request = f", request {error.request_id}" if error.request_id else ""
    raised = raised_as(
        f"{what} ({status}, {error.code}{request}): {error.message.rstrip('.')}. {remedy}, {_THEN}"
    )
    raised.__cause__ = error
    return raised


def halted_error(error: AccountHaltedError) -> LLMTerminalError:
    """Return what to raise when somebody else on the account met a failure of one of the terminal kinds."""
    raised_as, what, remedy = _MEANINGS[error.kind]
    raised = raised_as(
        f"{what}: another task on this account found out, so nothing was sent. {remedy}, {_THEN}"
    )
    raised.__cause__ = error
    return raised
