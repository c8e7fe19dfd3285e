"""A model client that answers by script, in process and in virtual time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_llm_provider.engine.call import CallError, FailureKind, Reply
from airflow_llm_provider.engine.clock import SystemClock
from airflow_llm_provider.engine.usage import Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from airflow_llm_provider.engine.clock import Clock


@dataclass(frozen=True, kw_only=True, slots=True)
class Delayed:
    """An answer that takes its own time.

    :param seconds: time on the client's clock; ``float("inf")``: there never is an answer.
    """

    answer: Reply | BaseException | str
    seconds: float


#: What a script holds: a string is the text of a successful completion, an exception is raised.
Answer = Reply | BaseException | str | Delayed


@dataclass(kw_only=True, slots=True)
class ScriptedCall:
    """One call that the client received.

    :param number: position among all calls, from 0.
    :param nth: how often this very body has been sent, this call included.
    :param started: the clock's monotonic seconds, as is ``ended``; ``None``: still in flight.
    :param result: what the caller got; ``None``: nothing yet, or the call was cancelled.
    """

    number: int
    nth: int
    body: Mapping[str, Any]
    timeout: float
    started: float
    ended: float | None = None
    result: Reply | BaseException | None = None
    cancelled: bool = False


class ScriptedClient:
    """A :class:`~airflow_llm_provider.engine.call.ModelClient` that answers by script and records every call.

    ::

        client = ScriptedClient(["yes", CallError(FailureKind.OVERLOADED, "http_503", "busy")], clock=clock)

    :param script: answers in the order of the calls, or a function of the call.
    :param then: answer of every call after the script's last.
    :param latency: seconds that an answer takes. As a real client, a call longer than its timeout fails.
    """

    def __init__(
        self,
        script: Iterable[Answer] | Callable[[ScriptedCall], Answer] = (),
        *,
        then: Answer = "ok",
        latency: float = 0.0,
        clock: Clock | None = None,
    ) -> None:
        self._respond = script if callable(script) else _in_order(iter(script), then)
        self._latency = latency
        self._clock = clock or SystemClock()
        self._seen: dict[str, int] = {}
        #: Every call, in the order of arrival.
        self.calls: list[ScriptedCall] = []
        self.in_flight = 0
        self.max_in_flight = 0
        self.closed = False

    async def complete(self, body: Mapping[str, Any], *, timeout: float) -> Reply:  # noqa: ASYNC109 -- the protocol's
        """Answer by script."""
        call = self._record(body, timeout)
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        try:
            call.result = await self._answer(call)
        finally:
            self.in_flight -= 1
            call.ended = self._clock.monotonic()
            call.cancelled = call.result is None
        if isinstance(call.result, Reply):
            return call.result
        raise call.result.with_traceback(None)

    async def aclose(self) -> None:
        """Note that the client was closed."""
        self.closed = True

    def bodies(self) -> list[Mapping[str, Any]]:
        """Return the bodies of all calls, in the order of arrival."""
        return [call.body for call in self.calls]

    def _record(self, body: Mapping[str, Any], timeout: float) -> ScriptedCall:
        key = repr(body)
        self._seen[key] = nth = self._seen.get(key, 0) + 1
        call = ScriptedCall(
            number=len(self.calls), nth=nth, body=body, timeout=timeout, started=self._clock.monotonic()
        )
        self.calls.append(call)
        return call

    async def _answer(self, call: ScriptedCall) -> Reply | BaseException:
        scripted = self._respond(call)
        if isinstance(scripted, Delayed):
            answer, seconds = scripted.answer, scripted.seconds
        else:
            answer, seconds = scripted, self._latency
        if seconds > call.timeout:
            await self._clock.sleep(call.timeout)
            return CallError(FailureKind.TIMEOUT, "timeout", f"No answer within {call.timeout:g} s")
        await self._clock.sleep(seconds)
        return reply(answer) if isinstance(answer, str) else answer


def reply(
    text: str | None = "ok",
    *,
    prompt_tokens: int = 10,
    completion_tokens: int = 5,
    finish_reason: str = "stop",
    model: str = "scripted",
    **more: Any,
) -> Reply:
    """Return a completion with usage, as an endpoint would."""
    usage = Usage(prompt_tokens=prompt_tokens, completion_tokens=completion_tokens)
    return Reply(text=text, finish_reason=finish_reason, usage=usage, model=model, **more)


def _in_order(script: Iterator[Answer], then: Answer) -> Callable[[ScriptedCall], Answer]:
    return lambda _call: next(script, then)
