"""How a row ended."""

from __future__ import annotations

from enum import StrEnum


class RowStatus(StrEnum):
    """How a row ended. Exactly one per input row; only ``SUCCESS`` has an answer."""

    SUCCESS = "success"
    #: The answer hit the output cap: paid for, incomplete.
    TRUNCATED = "truncated"
    #: The model answered with nothing.
    EMPTY = "empty"
    #: The model declined.
    REFUSED = "refused"
    #: The provider's filter stopped the prompt or the answer.
    CONTENT_FILTER = "content_filter"
    #: The answer does not match the output schema.
    INVALID_OUTPUT = "invalid_output"
    #: Prompt and output cap exceed the model's context window.
    CONTEXT_TOO_LONG = "context_too_long"
    #: Every column that the prompt uses is null, NaN or blank: not sent.
    EMPTY_INPUT = "empty_input"
    #: One request exceeds what the account may send per minute: not sent.
    REQUEST_TOO_LARGE = "request_too_large"
    #: The endpoint refused this row's content (HTTP 400 or 422 that names no parameter), or it cannot be rendered.
    REJECTED = "rejected"
    #: No answer after every attempt.
    ERROR = "error"


#: Rows for which a completion was received and billed: never asked again unless the caller starts over.
PAID_STATUSES = frozenset(
    {RowStatus.SUCCESS, RowStatus.TRUNCATED, RowStatus.EMPTY, RowStatus.REFUSED, RowStatus.INVALID_OUTPUT}
)
