"""One call to the model: what goes out, what comes back, how it can fail. The seam between engine and clients."""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from airflow_llm_provider.engine.status import RowStatus
from airflow_llm_provider.engine.usage import Usage
from airflow_llm_provider.engine.value import value

if TYPE_CHECKING:
    from collections.abc import Mapping


@value
class Request:
    """One row's request.

    :param index: position of the row in its shard, from 0.
    :param body: JSON body of ``POST /chat/completions``.
    :param prompt_tokens: counted tokens of the prompt.
    :param max_output_tokens: output cap of the body: with ``prompt_tokens``, the most the request can take of a
        token limit.
    """

    index: int
    body: Mapping[str, Any]
    prompt_tokens: int
    max_output_tokens: int


@value
class RateHint:
    """What an endpoint said about its limits in ``x-ratelimit-*`` headers; ``None``: not said.

    :param limit_requests: requests per window.
    :param limit_tokens: tokens per window.
    :param remaining_requests: requests left now.
    :param remaining_tokens: tokens left now.
    :param reset_requests: seconds until the request limit is full again.
    :param reset_tokens: seconds until the token limit is full again.
    """

    limit_requests: int | None = None
    limit_tokens: int | None = None
    remaining_requests: int | None = None
    remaining_tokens: int | None = None
    reset_requests: float | None = None
    reset_tokens: float | None = None


@value
class Reply:
    """A completion, as the endpoint sent it.

    :param text: content of the message; ``None`` when there is none.
    :param refusal: the model's words when it declined.
    :param finish_reason: why the model stopped, such as ``stop``, ``length``, ``content_filter``.
    :param usage: billed tokens; ``None``: not reported.
    :param model: model that answered.
    :param request_id: the endpoint's id of the request, for its support.
    :param requests: how many were sent for it, when the client found out first how the endpoint wants them.
    """

    text: str | None
    refusal: str | None = None
    finish_reason: str | None = None
    usage: Usage | None = None
    model: str | None = None
    request_id: str | None = None
    rate: RateHint | None = None
    requests: int = 1


class FailureKind(StrEnum):
    """What a failed call means, which decides everything that follows."""

    #: This row's content is the reason: the row ends, the others go on.
    ROW = "row"
    #: HTTP 429 that time will mend.
    RATE_LIMITED = "rate_limited"
    #: The endpoint is overloaded or broken: 5xx, 409, 408.
    OVERLOADED = "overloaded"
    #: No answer in time.
    TIMEOUT = "timeout"
    #: The connection failed.
    CONNECTION = "connection"
    #: HTTP 200 without a completion in it: HTML, an error object, no choices, cut JSON.
    BAD_RESPONSE = "bad_response"
    #: A request parameter or the model is refused: every row would fail.
    CONFIGURATION = "configuration"
    #: The account has no credit left.
    QUOTA = "quota"
    #: The key is refused.
    AUTHENTICATION = "authentication"


#: Kinds that stop the shard at once: no thousand identical failures.
TERMINAL_KINDS = frozenset({FailureKind.CONFIGURATION, FailureKind.QUOTA, FailureKind.AUTHENTICATION})
#: Kinds that another attempt may mend.
RETRYABLE_KINDS = frozenset(
    {
        FailureKind.RATE_LIMITED,
        FailureKind.OVERLOADED,
        FailureKind.TIMEOUT,
        FailureKind.CONNECTION,
        FailureKind.BAD_RESPONSE,
    }
)


class CallError(Exception):
    """A call that brought no completion.

    :param kind: what it means.
    :param code: short stable code for counting, such as ``http_503`` or ``context_length_exceeded``; no free text.
    :param message: what happened, without row text or secrets.
    :param row_status: how the row ends when ``kind`` is ``ROW``.
    :param status_code: HTTP status; ``None``: there was no answer.
    :param retry_after: seconds the endpoint asked to wait.
    """

    def __init__(
        self,
        kind: FailureKind,
        code: str,
        message: str,
        *,
        row_status: RowStatus = RowStatus.REJECTED,
        status_code: int | None = None,
        retry_after: float | None = None,
        request_id: str | None = None,
        rate: RateHint | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.code = code
        self.message = message
        self.row_status = row_status
        self.status_code = status_code
        self.retry_after = retry_after
        self.request_id = request_id
        self.rate = rate
        #: How many requests were sent for it.
        self.requests = 1


class ModelClient(Protocol):
    """Sends one request. Implementations convert every vendor error to :class:`CallError`."""

    async def complete(self, body: Mapping[str, Any], *, timeout: float) -> Reply:  # noqa: ASYNC109 -- the client's own bound
        """Send ``body`` and return the completion.

        :param timeout: seconds for the whole call.
        :raises CallError: when there is no completion.
        """
        ...

    async def aclose(self) -> None:
        """Close connections."""
        ...


@value
class Judgement:
    """What a completion is worth.

    :param status: how the row ends with it.
    :param answer: parsed answer when ``status`` is success: a string, or a dict of the schema's properties.
    :param code: short stable code of what is wrong, no free text; ``None`` on success.
    :param message: what is wrong, for the output's error column; may quote the answer, so it stays out of logs.
    :param try_again: asking again may help (unparsable output, not a well-formed wrong one).
    """

    status: RowStatus
    answer: Any = None
    code: str | None = None
    message: str | None = None
    try_again: bool = False


class Judge(Protocol):
    """Decides what a completion is worth; pure."""

    def __call__(self, reply: Reply) -> Judgement:
        """Judge one completion."""
        ...


@value
class Outcome:
    """How one row ended.

    :param index: position of the row in its shard.
    :param text: the model's words as received, whatever the status; ``None`` when there are none.
    :param answer: parsed answer; only with ``success``.
    :param code: short stable error code, safe for logs; ``None`` on success.
    :param message: error text for the output's error column only.
    :param usage: tokens billed for all attempts.
    :param cost_usd: US dollars for all attempts; ``None``: unknown.
    :param attempts: requests sent for the row.
    :param latency_ms: milliseconds of the last attempt.
    :param account: name of the account that the last attempt went out on.
    """

    index: int
    status: RowStatus
    text: str | None = None
    answer: Any = None
    code: str | None = None
    message: str | None = None
    model: str | None = None
    finish_reason: str | None = None
    usage: Usage = field(default_factory=Usage)
    cost_usd: float | None = None
    attempts: int = 0
    latency_ms: float | None = None
    request_id: str | None = None
    account: str | None = None
