"""What servers refuse with, and what each of it means."""

from __future__ import annotations

import json

from airflow_llm_provider.clients.classify import refused
from airflow_llm_provider.clients.redact import Redactor
from airflow_llm_provider.engine.call import CallError, FailureKind
from airflow_llm_provider.engine.status import RowStatus

NOW = 1_700_000_000.0


def refusal(status, body, headers=None, *, secrets=()) -> CallError:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return refused(status, headers or {}, raw, now=NOW, redact=Redactor(*secrets))


def gemini(what, delay):
    details = [{"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{"quotaId": what}]}]
    if delay is not None:
        details.append({"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay})
    said = "You exceeded your current quota, please check your plan and billing details."
    return [{"error": {"code": 429, "message": said, "status": "RESOURCE_EXHAUSTED", "details": details}}]


def openai(message="Something.", *, code=None, param=None, kind="invalid_request_error"):
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


CONTEXT = (
    "This model's maximum context length is 8192 tokens. However, your messages resulted in 48012 tokens. "
    "Please reduce the length of the messages."
)
AZURE_FILTER = {
    "error": {
        "message": "The response was filtered due to the prompt triggering Azure OpenAI's content management policy.",
        "type": None,
        "param": "prompt",
        "code": "content_filter",
        "status": 400,
        "innererror": {
            "code": "ResponsibleAIPolicyViolation",
            "content_filter_result": {"hate": {"filtered": True}},
        },
    }
}

ROWS = [
    # OpenAI
    (400, openai(CONTEXT, code="context_length_exceeded", param="messages"), RowStatus.CONTEXT_TOO_LONG),
    (400, openai(code="string_above_max_length", param="messages[0].content"), RowStatus.CONTEXT_TOO_LONG),
    (400, openai(code="invalid_prompt"), RowStatus.CONTENT_FILTER),
    (400, openai(code="content_policy_violation"), RowStatus.CONTENT_FILTER),
    (400, openai(code="invalid_value", param="messages.[0].content"), RowStatus.REJECTED),
    (400, openai(code="unsupported_value", param="messages[0].role"), RowStatus.REJECTED),
    (400, openai("We could not parse the JSON body of your request."), RowStatus.REJECTED),
    (413, openai("Request too large", kind="invalid_request_error"), RowStatus.REQUEST_TOO_LARGE),
    (
        429,
        openai(
            "Request too large for gpt-4o in organization org-x on tokens per min (TPM): Limit 30000, Requested 48012.",
            code="rate_limit_exceeded",
            kind="tokens",
        ),
        RowStatus.REQUEST_TOO_LARGE,
    ),
    # Azure
    (400, AZURE_FILTER, RowStatus.CONTENT_FILTER),
    (
        400,
        {"error": {"code": None, "innererror": {"code": "ResponsibleAIPolicyViolation"}}},
        RowStatus.CONTENT_FILTER,
    ),
    # vLLM, older and newer, and its complaint about the cap that is one about the prompt
    (
        400,
        {"object": "error", "message": CONTEXT, "type": "BadRequestError", "param": None, "code": 400},
        RowStatus.CONTEXT_TOO_LONG,
    ),
    (
        400,
        {"error": {"message": CONTEXT, "type": "BadRequestError", "param": "input_tokens", "code": 400}},
        RowStatus.CONTEXT_TOO_LONG,
    ),
    (
        400,
        {
            "error": {
                "message": "'max_tokens' or 'max_completion_tokens' is too large: 1000. This model's maximum context "
                "length is 2048 tokens and your request has 1500 input tokens (1000 > 2048 - 1500).",
                "type": "BadRequestError",
                "param": "max_tokens",
                "code": 400,
            }
        },
        RowStatus.CONTEXT_TOO_LONG,
    ),
    # llama.cpp
    (
        400,
        {
            "error": {
                "code": 400,
                "message": "the request exceeds the available context size, try increasing it",
                "type": "exceed_context_size_error",
                "n_prompt_tokens": 5000,
                "n_ctx": 4096,
            }
        },
        RowStatus.CONTEXT_TOO_LONG,
    ),
    # Ollama
    (400, {"error": "prompt too long; exceeded max context length by 4 tokens"}, RowStatus.CONTEXT_TOO_LONG),
    # OpenRouter
    (
        403,
        {
            "error": {
                "code": 403,
                "message": "Your input was flagged",
                "metadata": {"reasons": ["violence"], "flagged_input": "row text"},
            }
        },
        RowStatus.CONTENT_FILTER,
    ),
    # LiteLLM
    (
        400,
        {
            "error": {
                "message": "litellm.ContextWindowExceededError: litellm.BadRequestError: ...",
                "type": None,
                "param": None,
                "code": "400",
            }
        },
        RowStatus.CONTEXT_TOO_LONG,
    ),
    (
        400,
        {
            "error": {
                "message": "litellm.ContentPolicyViolationError: ...",
                "type": None,
                "param": None,
                "code": "400",
            }
        },
        RowStatus.CONTENT_FILTER,
    ),
    # Groq, GitHub Models, Anthropic
    (413, openai("Request too large", code="rate_limit_exceeded", kind="tokens"), RowStatus.REJECTED),
    (413, openai(code="tokens_limit_reached"), RowStatus.CONTEXT_TOO_LONG),
    (400, openai("prompt is too long: 250000 tokens > 200000 maximum"), RowStatus.CONTEXT_TOO_LONG),
    # FastAPI's own validation of the content
    (
        422,
        {
            "detail": [
                {
                    "type": "string_type",
                    "loc": ["body", "messages", 0, "content"],
                    "msg": "Input should be text",
                }
            ]
        },
        RowStatus.REJECTED,
    ),
    # anything that nobody explains
    (400, b"", RowStatus.REJECTED),
    (400, b"<html>400 Bad Request</html>", RowStatus.REJECTED),
    (422, {"detail": "no"}, RowStatus.REJECTED),
    (418, openai(), RowStatus.REJECTED),
]

KINDS = [
    # C1
    (429, openai(code="insufficient_quota", kind="insufficient_quota"), FailureKind.QUOTA),
    (429, {"error": {"code": "insufficient_quota"}}, FailureKind.QUOTA),
    (429, openai(kind="insufficient_quota"), FailureKind.QUOTA),
    (403, openai("You exceeded your current quota, please check your plan"), FailureKind.QUOTA),
    # Gemini says so of a minute's limit, with and without the time that is left of it.
    (429, gemini("PerMinute", "26s"), FailureKind.RATE_LIMITED),
    (429, gemini("PerDay", None), FailureKind.RATE_LIMITED),
    (402, {"error": {"code": 402, "message": "Insufficient credits"}}, FailureKind.QUOTA),
    (
        402,
        openai("Insufficient Balance", code="invalid_request_error", kind="unknown_error"),
        FailureKind.QUOTA,
    ),
    (400, openai("Your credit balance is too low to access the API."), FailureKind.QUOTA),
    (400, openai("ExceededBudget: over", kind="budget_exceeded", code="400"), FailureKind.QUOTA),
    # authentication
    (401, openai("Incorrect API key provided: sk-abc.", code="invalid_api_key"), FailureKind.AUTHENTICATION),
    (
        401,
        {"statusCode": 401, "message": "Unauthorized. Access token is missing"},
        FailureKind.AUTHENTICATION,
    ),
    (401, {"error": "unauthorized"}, FailureKind.AUTHENTICATION),
    (401, b"", FailureKind.AUTHENTICATION),
    (403, openai("You are not allowed to sample from this model"), FailureKind.AUTHENTICATION),
    (
        400,
        [
            {
                "error": {
                    "code": 400,
                    "message": "bad key",
                    "status": "INVALID_ARGUMENT",
                    "details": [{"reason": "API_KEY_INVALID"}],
                }
            }
        ],
        FailureKind.AUTHENTICATION,
    ),
    (407, b"<html>", FailureKind.AUTHENTICATION),
    # C18 and its neighbours: the request is wrong, whatever the row
    (400, openai(code="unsupported_value", param="temperature"), FailureKind.CONFIGURATION),
    (400, openai(code="unsupported_parameter", param="max_tokens"), FailureKind.CONFIGURATION),
    (
        400,
        openai("max_tokens is too large: 5000.", code="invalid_value", param="max_tokens"),
        FailureKind.CONFIGURATION,
    ),
    (400, openai("Invalid schema for response_format", param="response_format"), FailureKind.CONFIGURATION),
    (400, openai("Unrecognized request argument supplied: seed"), FailureKind.CONFIGURATION),
    (
        400,
        {
            "error": {
                "message": "temperature must be non-negative, got -1.",
                "type": "BadRequestError",
                "code": 400,
            }
        },
        FailureKind.CONFIGURATION,
    ),
    (400, openai("'temperature' does not support 0 with this model."), FailureKind.CONFIGURATION),
    (
        422,
        {"detail": [{"type": "extra_forbidden", "loc": ["body", "seed"], "msg": "Extra inputs"}]},
        FailureKind.CONFIGURATION,
    ),
    (404, openai("The model `x` does not exist", code="model_not_found"), FailureKind.CONFIGURATION),
    (400, openai("x is not a valid model", code="model_not_found", param="model"), FailureKind.CONFIGURATION),
    (404, {"error": {"code": "DeploymentNotFound", "message": "..."}}, FailureKind.CONFIGURATION),
    (
        404,
        {"error": {"message": "model 'x' not found", "type": "not_found_error", "param": None, "code": None}},
        FailureKind.CONFIGURATION,
    ),
    (404, b"<html>Not Found</html>", FailureKind.CONFIGURATION),
    (
        404,
        {"error": {"code": 404, "message": "File Not Found", "type": "not_found_error"}},
        FailureKind.CONFIGURATION,
    ),
    (404, {"detail": "Not Found"}, FailureKind.CONFIGURATION),
    (405, b"", FailureKind.CONFIGURATION),
    (410, openai("model retired"), FailureKind.CONFIGURATION),
    (301, b"", FailureKind.CONFIGURATION),
    (308, b"", FailureKind.CONFIGURATION),
    # time will mend it
    (
        429,
        openai("Rate limit reached", code="rate_limit_exceeded", kind="requests"),
        FailureKind.RATE_LIMITED,
    ),
    (
        429,
        {"error": {"code": "429", "message": "Requests have exceeded call rate limit"}},
        FailureKind.RATE_LIMITED,
    ),
    (429, b"slow down", FailureKind.RATE_LIMITED),
    (408, b"", FailureKind.OVERLOADED),
    (409, openai(), FailureKind.OVERLOADED),
    (500, b"", FailureKind.OVERLOADED),
    (502, b"<html>Bad Gateway</html>", FailureKind.OVERLOADED),
    (
        503,
        {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}},
        FailureKind.OVERLOADED,
    ),
    (
        529,
        {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
        FailureKind.OVERLOADED,
    ),
    (500, openai(code="insufficient_quota"), FailureKind.OVERLOADED),
    # another answer may do, and a firewall's page about one row's text must not stop the others
    (400, openai("Failed to generate JSON", code="json_validate_failed"), FailureKind.BAD_RESPONSE),
    (403, b"<html>Forbidden</html>", FailureKind.BAD_RESPONSE),
]
