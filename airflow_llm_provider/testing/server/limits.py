"""An account's limits, as an endpoint keeps them: so much in any window, refused beyond."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class AccountLimits:
    """Limits of one (key, model).

    :param requests: requests in any window; ``None``: unlimited.
    :param tokens: tokens in any window; ``None``: unlimited.
    :param window: seconds of the window.
    :param reserve: what a request takes of ``tokens``: prompt and output cap (``cap``, as OpenAI does) or prompt and
        actual answer (``usage``).
    :param announce: send ``x-ratelimit-*`` headers.
    :param retry_after: value of ``retry-after`` on a 429; ``None``: none is sent.
    """

    requests: int | None = None
    tokens: int | None = None
    window: float = 60.0
    reserve: Literal["cap", "usage"] = "cap"
    announce: bool = True
    retry_after: str | None = "auto"


class SlidingWindow:
    """What was let through in the last window.

    :param limits: the limits to keep.
    """

    def __init__(self, limits: AccountLimits) -> None:
        self._limits = limits
        self._taken: deque[tuple[float, int]] = deque()
        self._tokens = 0
        #: Most requests and tokens let through in any window.
        self.peak_requests = 0
        self.peak_tokens = 0

    def admit(self, tokens: int, *, now: float) -> float | None:
        """Let a request through, or say in how many seconds it fits."""
        while self._taken and self._taken[0][0] <= now - self._limits.window:
            self._tokens -= self._taken.popleft()[1]
        wait = self._wait(tokens, now)
        if wait is not None:
            return wait
        self._taken.append((now, tokens))
        self._tokens += tokens
        self.peak_requests = max(self.peak_requests, len(self._taken))
        self.peak_tokens = max(self.peak_tokens, self._tokens)
        return None

    def _wait(self, tokens: int, now: float) -> float | None:
        most_requests, most_tokens = self._limits.requests, self._limits.tokens
        excess = 0 if most_tokens is None else self._tokens + tokens - most_tokens
        full = most_requests is not None and len(self._taken) >= most_requests
        if excess <= 0 and not full:
            return None
        if not self._taken:  # more than the limit by itself
            return self._limits.window
        until = self._taken[0][0]
        for at, taken in self._taken:
            if excess <= 0:
                break
            until = max(until, at)
            excess -= taken
        return max(0.0, until + self._limits.window - now)

    def headers(self, *, now: float) -> dict[str, str]:
        """Return the ``x-ratelimit-*`` headers after the latest request."""
        if not self._limits.announce:
            return {}
        oldest = self._taken[0][0] if self._taken else now
        reset = go_duration(max(0.0, oldest + self._limits.window - now))
        headers = {}
        for name, limit, taken in (
            ("requests", self._limits.requests, len(self._taken)),
            ("tokens", self._limits.tokens, self._tokens),
        ):
            if limit is not None:
                headers[f"x-ratelimit-limit-{name}"] = str(limit)
                headers[f"x-ratelimit-remaining-{name}"] = str(max(0, limit - taken))
                headers[f"x-ratelimit-reset-{name}"] = reset
        return headers


def go_duration(seconds: float) -> str:
    """Write a duration as OpenAI's headers do: ``17ms``, ``1.2s``, ``6m0s``."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    minutes, rest = divmod(seconds, 60)
    text = f"{rest:.3f}".rstrip("0").rstrip(".")
    return f"{int(minutes)}m{text}s" if minutes else f"{text}s"
