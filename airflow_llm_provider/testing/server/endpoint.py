"""An OpenAI-compatible endpoint that does as its script says, and the routes by which a test speaks to it."""

from __future__ import annotations

import itertools
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import orjson

from airflow_llm_provider.testing.server.answers import default_answer, prompt_text
from airflow_llm_provider.testing.server.http import Fault, HttpRequest, HttpResponse
from airflow_llm_provider.testing.server.limits import AccountLimits, SlidingWindow
from airflow_llm_provider.testing.server.record import Records
from airflow_llm_provider.testing.server.rule import Rule, Script

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_COMPLETIONS = "/v1/chat/completions"
_MODELS = "/v1/models"
_PAGE = 5000


@dataclass(frozen=True, kw_only=True)
class EndpointOptions:
    """How the endpoint behaves where no rule speaks.

    :param answer: ``echo``, ``upper``, ``hash`` or ``ok``; a request for a ``json_schema`` gets a valid instance.
    :param latency: seconds before a completion.
    :param jitter: random seconds on top of it, at most.
    :param api_key: key to insist on; ``None``: any or none will do.
    :param models: models there are; empty: any.
    :param limits: account limits per (key, model); ``None``: none.
    :param full_records: keep bodies and headers of requests, not only their hashes and times.
    """

    answer: str = "echo"
    latency: float = 0.0
    jitter: float = 0.0
    api_key: str | None = None
    models: tuple[str, ...] = ()
    limits: AccountLimits | None = None
    full_records: bool = True


class ScriptedEndpoint:
    """Turns requests into responses; no sockets here.

    :param options: behaviour where no rule speaks.
    :param monotonic: source of monotonic seconds.
    :param epoch: source of epoch seconds.
    """

    def __init__(
        self,
        options: EndpointOptions | None = None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        epoch: Callable[[], float] = time.time,
    ) -> None:
        self._options = options or EndpointOptions()
        self._monotonic = monotonic
        self._epoch = epoch
        self._random = random.Random(0)  # noqa: S311 -- jitter, the same in every run
        self._numbers = itertools.count(1)
        self._held: list[Callable[[], None]] = []
        self.script: list[Rule] = []
        self.reset()

    def reset(self, rules: list[Rule] | None = None) -> None:
        """Forget requests and limits, and start a script: a new one, or the last one anew; what is held goes out."""
        self.script = self.script if rules is None else rules
        self._script = Script(self.script, now=self._monotonic())
        self.records = Records(full=self._options.full_records, time=self._epoch)
        self._windows: dict[tuple[str | None, str], SlidingWindow] = {}
        held, self._held = self._held, []
        for send in held:
            send()

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Answer a request."""
        if request.path == _COMPLETIONS and request.method == "POST":
            return self._complete(request)
        if request.path == _MODELS and request.method == "GET":
            return self._list_models(request)
        if request.path.startswith("/_"):
            return self._control(request)
        return _error(404, f"Unknown request URL: {request.method} {request.path}.", code="unknown_url")

    def _complete(self, request: HttpRequest) -> HttpResponse:
        try:
            body = orjson.loads(request.body)
        except orjson.JSONDecodeError:
            return _error(400, "We could not parse the JSON body of your request.", code=None)
        if not isinstance(body, dict):
            return _error(400, "The body is not an object.", code=None)
        records = self.records
        record = records.begin(request.body, body, dict(request.headers))
        response, completion = self._respond(body, key=_key(request))
        response.on_end = lambda whole: records.end(
            record, status=response.status, completion=completion, whole=whole
        )
        response.headers = {"x-request-id": f"req_{record.number}", **response.headers}
        return response

    def _respond(self, body: dict[str, Any], *, key: str | None) -> tuple[HttpResponse, bool]:
        """Build the response and say whether it is a completion."""
        refused = self._refuse(body, key=key)
        if refused is not None:
            return refused, False
        text = prompt_text(body.get("messages"))
        rule = self._script.find(body, text=text, key=key, now=self._monotonic()) if self.script else None
        if rule is not None and (rule.status != 200 or rule.body is not None or rule.text is not None):  # noqa: PLR2004
            response = _scripted(rule)
            response.hold = self._held.append if rule.held else None
            return response, False
        content = (
            default_answer(body, self._options.answer) if rule is None or rule.answer is None else rule.answer
        )
        usage = {"prompt_tokens": len(text.split()), "completion_tokens": len(content.split())}
        over, headers = self._limit(body, usage, key=key)
        if over is not None:
            return over, False
        response = self._completion(body, content, usage, rule)
        response.headers = {**headers, **response.headers}
        return response, response.fault is None and (rule is None or rule.cut is None)

    def _refuse(self, body: dict[str, Any], *, key: str | None) -> HttpResponse | None:
        if self._options.api_key is not None and key != self._options.api_key:
            return _error(401, f"Incorrect API key provided: {key}.", code="invalid_api_key")
        model = body.get("model")
        if self._options.models and model not in self._options.models:
            return _error(404, f"The model `{model}` does not exist.", code="model_not_found", param="model")
        return None

    def _limit(
        self, body: dict[str, Any], usage: Mapping[str, int], *, key: str | None
    ) -> tuple[HttpResponse | None, dict[str, str]]:
        limits = self._options.limits
        if limits is None:
            return None, {}
        window = self._windows.setdefault((key, str(body.get("model"))), SlidingWindow(limits))
        cap = body.get("max_tokens") or body.get("max_completion_tokens") or 0
        tokens = usage["prompt_tokens"] + (cap if limits.reserve == "cap" else usage["completion_tokens"])
        now = self._monotonic()
        wait = window.admit(tokens, now=now)
        headers = window.headers(now=now)
        if wait is None:
            return None, headers
        if limits.retry_after is not None:
            headers["retry-after"] = f"{wait:.3f}" if limits.retry_after == "auto" else limits.retry_after
        refusal = _error(429, "Rate limit reached.", code="rate_limit_exceeded", kind="requests")
        refusal.headers = headers
        return refusal, headers

    def _completion(
        self, body: dict[str, Any], content: str, usage: dict[str, int], rule: Rule | None
    ) -> HttpResponse:
        rule = rule or _NO_RULE
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None if rule.null_content or rule.refusal is not None else content,
            "refusal": rule.refusal,
        }
        number = next(self._numbers)
        completion: dict[str, Any] = {
            "id": f"chatcmpl-{number}",
            "object": "chat.completion",
            "created": int(self._epoch()),
            "model": body.get("model"),
            "choices": [
                {"index": 0, "message": message, "logprobs": None, "finish_reason": rule.finish_reason}
            ],
        }
        if not rule.no_usage:
            total = usage["prompt_tokens"] + usage["completion_tokens"]
            completion["usage"] = {**usage, "total_tokens": total} if rule.usage is None else rule.usage
        options = self._options
        delay = options.latency + (self._random.random() * options.jitter if options.jitter else 0.0)
        return HttpResponse(
            body=orjson.dumps(completion)[: rule.cut],
            headers=rule.headers,
            delay=delay + rule.delay,
            fault=rule.fault,
            hold=self._held.append if rule.held else None,
        )

    def _list_models(self, request: HttpRequest) -> HttpResponse:
        if self._options.api_key is not None and _key(request) != self._options.api_key:
            return _error(401, "Incorrect API key provided.", code="invalid_api_key")
        models = [{"id": name, "object": "model"} for name in self._options.models or ("scripted",)]
        return _json({"object": "list", "data": models})

    def _control(self, request: HttpRequest) -> HttpResponse:
        if request.path == "/_requests":
            first = int(parse_qs(request.query).get("from", ["0"])[0])
            return _json([record.to_json() for record in self.records.requests[first : first + _PAGE]])
        if request.path == "/_stats":
            windows = self._windows.values()
            return _json(
                {
                    **self.records.stats(),
                    "peak_requests": max((window.peak_requests for window in windows), default=0),
                    "peak_tokens": max((window.peak_tokens for window in windows), default=0),
                }
            )
        if request.path == "/_reset":
            self.reset()
            return _json({})
        if request.path == "/_script":
            try:
                self.reset([Rule.from_json(rule) for rule in orjson.loads(request.body)])
            except (ValueError, TypeError) as error:
                return _error(400, str(error), code=None)
            return _json({})
        return _error(404, f"No control {request.path}", code=None)


_NO_RULE = Rule()


def _key(request: HttpRequest) -> str | None:
    authorization = request.headers.get("authorization")
    return None if authorization is None else authorization.removeprefix("Bearer ")


def _scripted(rule: Rule) -> HttpResponse:
    """Send a rule's own body; without one, an error object in OpenAI's shape."""
    response = HttpResponse(status=rule.status, headers=rule.headers, delay=rule.delay, fault=rule.fault)
    if rule.text is not None:
        response.body, response.content_type = rule.text.encode(), rule.content_type
    elif rule.body is not None:
        response.body = orjson.dumps(rule.body)
    else:
        response.body = _error(rule.status, f"Scripted status {rule.status}.", code=None).body
    response.body = response.body[: rule.cut]
    return response


def _json(value: Any) -> HttpResponse:
    return HttpResponse(body=orjson.dumps(value))


def _error(
    status: int,
    message: str,
    *,
    code: str | None,
    param: str | None = None,
    kind: str = "invalid_request_error",
) -> HttpResponse:
    error = {"message": message, "type": kind, "param": param, "code": code}
    return HttpResponse(status=status, body=orjson.dumps({"error": error}))


__all__ = ["EndpointOptions", "Fault", "ScriptedEndpoint"]
