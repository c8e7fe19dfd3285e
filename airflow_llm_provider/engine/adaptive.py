"""How many requests an endpoint takes at a time, found out by trying: for one that states no limits.

Additive increase, multiplicative decrease, pure: takes the time, never waits. It begins at the ceiling, which is what
the user asked for, and only goes below when the endpoint drops requests:

* one cut an episode: a dropped request that was sent before the last cut says nothing new;
* a drop while few requests were in flight is no sign of too many (a probe during an outage), and shows, when nothing has
  succeeded since the last cut, that too many were not its reason either: the cut is undone;
* growth only when saturated: successes count while at least ``saturation`` of the limit is in flight;
* successes soon after a cut are of requests sent before it: not heard for ``cooldown`` seconds;
* a success after a retry is neutral.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_llm_provider.engine.gate import PASS, Passage
from airflow_llm_provider.engine.verdict import Verdict
from airflow_llm_provider.errors import LLMInputError

if TYPE_CHECKING:
    from airflow_llm_provider.engine.call import Request
    from airflow_llm_provider.engine.events import AttemptFinished

#: Shortest and longest wait for a free place, in seconds.
_SHORTEST_WAIT, _LONGEST_WAIT = 0.02, 0.5
#: Weight of the newest answer in the mean latency.
_WEIGHT = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class AdaptiveConfig:
    """How the number of requests in flight follows what the endpoint takes.

    :param ceiling: most requests in flight, and how many it begins with.
    :param floor: fewest.
    :param cut: factor of a decrease, between 0 and 1.
    :param growth: share of the ceiling that is added once as many requests as the limit have succeeded.
    :param saturation: share of the limit that must be in flight for a success to count.
    :param cooldown: seconds after a cut in which successes do not count.
    :raises LLMInputError: on a value outside its bounds.
    """

    ceiling: int
    floor: int = 1
    cut: float = 0.8
    growth: float = 0.1
    saturation: float = 0.8
    cooldown: float = 1.0

    def __post_init__(self) -> None:
        for name in ("ceiling", "floor"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise LLMInputError(f"AdaptiveConfig.{name} is {value!r}: give a whole number of at least 1")
        if self.floor > self.ceiling:
            raise LLMInputError(
                f"AdaptiveConfig.floor is {self.floor}, above ceiling ({self.ceiling}): lower it"
            )
        for name in ("cut", "growth", "saturation"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < 1:
                raise LLMInputError(f"AdaptiveConfig.{name} is {value!r}: give a number between 0 and 1")
        if not isinstance(self.cooldown, (int, float)) or not 0 <= self.cooldown < math.inf:
            raise LLMInputError(f"AdaptiveConfig.cooldown is {self.cooldown!r}: give seconds, at least 0")


class AdaptiveConcurrency:
    """The limit on requests in flight."""

    def __init__(self, config: AdaptiveConfig) -> None:
        self.config = config
        self.limit = float(config.ceiling)
        self.in_flight = 0
        self._cut_at = -math.inf
        self._before_cuts: float | None = None
        self._successes = 0

    def admit(self) -> int:
        """Count one more request and return how many are in flight with it; 0: it may not go out."""
        if self.in_flight >= int(self.limit):
            return 0
        self.in_flight += 1
        return self.in_flight

    def hold(self) -> None:
        """Stay at the ceiling from now on: somebody else knows what the endpoint takes."""
        self.limit = float(self.config.ceiling)
        self._cut_at = math.inf

    def withdraw(self) -> None:
        """Count a request no longer that did not go out."""
        self.in_flight -= 1

    def record(
        self, verdict: Verdict, *, busy: int, sent_at: float, now: float, retried: bool = False
    ) -> None:
        """Hear how a request ended.

        :param busy: how many were in flight when it was admitted, as :meth:`admit` returned.
        :param retried: whether it was not the row's first attempt.
        """
        self.in_flight -= 1
        if verdict is Verdict.DROPPED:
            if sent_at > self._cut_at:
                self._heed_drop(busy, now)
            return
        if verdict is Verdict.SUCCESS and sent_at > self._cut_at:
            self._before_cuts = None
        if verdict is Verdict.SUCCESS and not retried and now >= self._cut_at + self.config.cooldown:
            self._grow(busy)

    def _heed_drop(self, busy: int, now: float) -> None:
        """Learn from a drop of a request that was sent after the last cut."""
        if busy >= self.limit / 2:
            if self._before_cuts is None:
                self._before_cuts = self.limit
            self._cut(now)
        elif self._before_cuts is not None and self.in_flight < self.limit / 2:
            self.limit, self._before_cuts = self._before_cuts, None

    def _cut(self, now: float) -> None:
        self.limit = max(float(self.config.floor), self.limit * self.config.cut)
        self._cut_at = now
        self._successes = 0

    def _grow(self, busy: int) -> None:
        if self.limit >= self.config.ceiling or busy < self.config.saturation * int(self.limit):
            return
        self._successes += 1
        if self._successes >= self.limit:
            self._successes = 0
            self.limit = min(
                float(self.config.ceiling), self.limit + max(1.0, self.config.growth * self.config.ceiling)
            )


class AdaptiveGate:
    """Keeps requests in flight below the limit; implements :class:`~airflow_llm_provider.engine.gate.Gate`.

    :param auto: whether to leave it to the limiter once the endpoint has stated its limits.
    """

    def __init__(self, config: AdaptiveConfig, *, auto: bool = False) -> None:
        self.concurrency = AdaptiveConcurrency(config)
        self._auto = auto
        self._latency = 1.0
        self._busy: dict[int, int] = {}

    def admit(self, request: Request, *, now: float) -> Passage:  # noqa: ARG002 -- the protocol's
        """Let the request pass while there is a place, else wait about as long as it takes for one to get free."""
        busy = self.concurrency.admit()
        if busy:
            self._busy[request.index] = busy
            return PASS
        wait = self._latency / self.concurrency.limit
        return Passage(wait=min(max(wait, _SHORTEST_WAIT), _LONGEST_WAIT))

    def withdraw(self, request: Request, *, now: float) -> None:  # noqa: ARG002 -- the protocol's
        """Give the place back."""
        del self._busy[request.index]
        self.concurrency.withdraw()

    def settle(self, request: Request, attempt: AttemptFinished, *, now: float) -> None:
        """Hear how the request ended."""
        if attempt.verdict is Verdict.SUCCESS:
            self._latency += _WEIGHT * (attempt.latency - self._latency)
        self.concurrency.record(
            attempt.verdict,
            busy=self._busy.pop(request.index),
            sent_at=now - attempt.latency,
            now=now,
            retried=attempt.attempt > 1,
        )
        if (
            self._auto
            and attempt.rate is not None
            and (attempt.rate.limit_requests or attempt.rate.limit_tokens)
        ):
            self._auto = False
            self.concurrency.hold()
