"""What the server saw: every request, in order, with what became of it."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(kw_only=True, slots=True)
class RecordedRequest:
    """One request to ``/chat/completions``.

    :param number: its number, from 0.
    :param at: epoch seconds of its arrival.
    :param digest: hash of the raw body.
    :param body: the body; ``None`` when the server keeps summaries only.
    :param authorized: whether an ``Authorization`` header came along.
    :param status: HTTP status of the response; ``None``: none was tried.
    :param answered: a completion was sent whole: the client may have been billed for it, and has it.
    :param ended_at: epoch seconds when the response was sent or the client gone.
    """

    number: int
    at: float
    digest: str
    body: dict[str, Any] | None = None
    authorized: bool = False
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    status: int | None = None
    answered: bool = False
    ended_at: float | None = None

    @property
    def prompt(self) -> str:
        """Text of the last message."""
        messages = (self.body or {}).get("messages") or [{}]
        return str(messages[-1].get("content", ""))

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Read a record."""
        return cls(**value)

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain JSON values."""
        return dataclasses.asdict(self)


def assert_answered_once(requests: Sequence[RecordedRequest], texts: Sequence[str]) -> None:
    """Fail unless exactly the rows with these texts were answered, each once.

    :raises AssertionError: naming what is missing, was answered twice or was not expected.
    """
    answered = [request.prompt for request in requests if request.answered]
    holding = {text: [prompt for prompt in answered if text in prompt] for text in texts}
    problems = [f"no answer for {text!r}" for text, found in holding.items() if not found]
    for text, found in holding.items():
        if len(set(found)) > 1:
            problems.append(f"{text!r} is in the prompts of {len(set(found))} rows: give a text that one has")
        elif len(found) > 1:
            problems.append(f"{len(found)} answers for {text!r}")
    others = {prompt for prompt in answered if not any(text in prompt for text in texts)}
    problems += [f"an answer for {prompt!r}, which was not expected" for prompt in sorted(others)]
    if problems:
        raise AssertionError("; ".join(problems))


class Records:
    """All requests since the last reset.

    :param full: keep bodies and headers, not only summaries.
    :param time: epoch seconds.
    """

    def __init__(self, *, full: bool, time: Callable[[], float]) -> None:
        self._full = full
        self._time = time
        self.requests: list[RecordedRequest] = []
        self.in_flight = 0
        self.max_in_flight = 0

    def begin(self, raw: bytes, body: dict[str, Any], headers: dict[str, str]) -> RecordedRequest:
        """Record a request's arrival."""
        request = RecordedRequest(
            number=len(self.requests),
            at=self._time(),
            digest=hashlib.blake2b(raw, digest_size=8).hexdigest(),
            body=body if self._full else None,
            authorized="authorization" in headers,
            headers={k: v for k, v in headers.items() if k != "authorization"} if self._full else {},
        )
        self.requests.append(request)
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        return request

    def end(self, request: RecordedRequest, *, status: int, completion: bool, whole: bool) -> None:
        """Record what became of a request."""
        request.status = status if whole else None
        request.answered = whole and completion
        request.ended_at = self._time()
        self.in_flight -= 1

    def stats(self) -> dict[str, Any]:
        """Count requests by status."""
        by_status: dict[str, int] = {}
        for request in self.requests:
            key = str(request.status) if request.status is not None else "none"
            by_status[key] = by_status.get(key, 0) + 1
        return {
            "requests": len(self.requests),
            "distinct": len({request.digest for request in self.requests}),
            "answered": sum(request.answered for request in self.requests),
            "answered_distinct": len({request.digest for request in self.requests if request.answered}),
            "by_status": by_status,
            "in_flight": self.in_flight,
            "max_in_flight": self.max_in_flight,
        }
