"""A circuit breaker: stops sending to an endpoint that does not answer, and finds out when it does again.

Pure: takes the time, never waits, reads no clock. It hears verdicts, not status codes, so a refusal for the rate (which
pauses by itself) and a row's bad content leave it alone. Names as in Polly.

* CLOSED: requests pass. Opens when, within ``sampling_duration``, at least ``minimum_throughput`` requests ended and
  the share of dropped ones reached ``failure_ratio``; or when ``consecutive_failures`` in a row were dropped, however
  long that took (a few slow time-outs never make a throughput).
* OPEN: nothing passes for ``break_duration``.
* HALF_OPEN: exactly one request passes, the probe; the others wait for its verdict. Success closes, a drop opens again.

What was sent before the breaker opened says nothing about the endpoint now, so its verdict is not heard.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_llm_provider.engine.call import FailureKind
from airflow_llm_provider.engine.circuit_state import CircuitState
from airflow_llm_provider.engine.gate import PASS, Passage
from airflow_llm_provider.engine.verdict import Verdict
from airflow_llm_provider.errors import LLMInputError, LLMRetryableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_llm_provider.engine.call import Request
    from airflow_llm_provider.engine.events import AttemptFinished

#: Failures that say nothing about the endpoint's health, except that it is there.
_ANSWERED = frozenset({FailureKind.ROW, FailureKind.RATE_LIMITED})
#: Seconds after which those who wait for a probe's verdict ask again.
_PROBE_POLL = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class BreakerConfig:
    """When a breaker opens, and for how long.

    :param failure_ratio: share of dropped requests, above 0, at most 1.
    :param minimum_throughput: ended requests below which the share means nothing.
    :param sampling_duration: seconds that the share is taken over.
    :param consecutive_failures: dropped requests in a row that open it by themselves; no more than a row's attempts,
        so that an outage does not use up a row.
    :param break_duration: seconds between probes.
    :param max_open: seconds after which an endpoint that still does not answer ends the run as retryable, so that
        nobody holds pool slots meanwhile. ``None``: never.
    :raises LLMInputError: on a value outside its bounds.
    """

    failure_ratio: float = 0.5
    minimum_throughput: int = 20
    sampling_duration: float = 10.0
    consecutive_failures: int = 4
    break_duration: float = 1.0
    max_open: float | None = 300.0

    def __post_init__(self) -> None:
        if not _is_number(self.failure_ratio) or not 0 < self.failure_ratio <= 1:
            raise LLMInputError(
                f"BreakerConfig.failure_ratio is {self.failure_ratio!r}: give a number above 0, at most 1"
            )
        for name in ("minimum_throughput", "consecutive_failures"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise LLMInputError(f"BreakerConfig.{name} is {value!r}: give a whole number of at least 1")
        for name in ("sampling_duration", "break_duration", "max_open"):
            value = getattr(self, name)
            if value is None and name == "max_open":
                continue
            if not _is_number(value) or value <= 0:
                raise LLMInputError(
                    f"BreakerConfig.{name} is {value!r}: give a finite number of seconds above 0"
                )


class Breaker:
    """The state machine. ``admit`` before each request, ``record`` after it."""

    def __init__(self, config: BreakerConfig | None = None) -> None:
        self.config = config or BreakerConfig()
        self.state = CircuitState.CLOSED
        #: When it left CLOSED; ``None`` while it has not.
        self.opened_at: float | None = None
        #: Counts every opening; a verdict counts only within the round in which its request was admitted.
        self.round = 0
        #: What the last dropped request met, for a person; ``None``: nobody said.
        self.last_failure: str | None = None
        #: Hears when it opens, and when it closes again; not of the probes between.
        self.on_change: Callable[[CircuitState], None] | None = None
        self._break_until = -math.inf
        self._probing = False
        self._samples: deque[tuple[float, bool]] = deque()
        self._dropped = 0
        self._streak = 0

    def admit(self, now: float) -> float:
        """Return 0 when a request may pass now, else the seconds after which to ask again."""
        if self.state is CircuitState.CLOSED:
            return 0.0
        if self.state is CircuitState.OPEN:
            if now < self._break_until:
                return self._break_until - now
            self.state = CircuitState.HALF_OPEN
            self._probing = False
        if self._probing:
            return _PROBE_POLL
        self._probing = True
        return 0.0

    def record(self, verdict: Verdict, *, round_: int, now: float) -> None:
        """Hear how a request ended that was admitted in ``round_``."""
        if round_ != self.round:
            return
        if self.state is CircuitState.HALF_OPEN:
            self._probing = False
            if verdict is Verdict.SUCCESS:
                self._close()
            elif verdict is Verdict.DROPPED:
                self._open(now)
        elif self.state is CircuitState.CLOSED and verdict is not Verdict.IGNORED:
            self._sample(dropped=verdict is Verdict.DROPPED, now=now)
            if self._is_unhealthy():
                self._open(now)

    def open_for(self, now: float) -> float:
        """Return the seconds since it left CLOSED; 0 when it is closed."""
        return 0.0 if self.opened_at is None else now - self.opened_at

    def _sample(self, *, dropped: bool, now: float) -> None:
        self._samples.append((now, dropped))
        self._dropped += dropped
        self._streak = self._streak + 1 if dropped else 0
        while self._samples[0][0] <= now - self.config.sampling_duration:
            self._dropped -= self._samples.popleft()[1]

    def _is_unhealthy(self) -> bool:
        if self._streak >= self.config.consecutive_failures:
            return True
        seen = len(self._samples)
        return seen >= self.config.minimum_throughput and self._dropped >= self.config.failure_ratio * seen

    def _open(self, now: float) -> None:
        began = self.opened_at is None
        self.state = CircuitState.OPEN
        self.opened_at = now if self.opened_at is None else self.opened_at
        self._break_until = now + self.config.break_duration
        self.round += 1
        if began and self.on_change is not None:
            self.on_change(self.state)

    def _close(self) -> None:
        self.state = CircuitState.CLOSED
        self.opened_at = self.last_failure = None
        self._samples.clear()
        self._dropped = self._streak = 0
        if self.on_change is not None:
            self.on_change(self.state)


class BreakerGate:
    """Puts a breaker before every request; implements :class:`~airflow_llm_provider.engine.gate.Gate`."""

    def __init__(self, breaker: Breaker | None = None) -> None:
        self.breaker = breaker or Breaker()
        self._rounds: dict[int, int] = {}

    def admit(self, request: Request, *, now: float) -> Passage:
        """Hold the request back while the breaker is open; end the run when that takes too long."""
        max_open = self.breaker.config.max_open
        if max_open is not None and self.breaker.open_for(now) >= max_open:
            last = f"; the last time: {self.breaker.last_failure}" if self.breaker.last_failure else ""
            return Passage(
                stop=LLMRetryableError(
                    f"The endpoint has not answered for {self.breaker.open_for(now):.0f} s, longer than max_outage "
                    f"({max_open:.0f} s){last}. Run again later: every answer so far is kept, rows without one are "
                    "pending.",
                    retry_after=max_open,
                )
            )
        wait = self.breaker.admit(now)
        if wait:
            return Passage(wait=wait)
        self._rounds[request.index] = self.breaker.round
        return PASS

    def withdraw(self, request: Request, *, now: float) -> None:
        """Take back a passage; a probe that was not sent leaves its turn to another."""
        self.breaker.record(Verdict.IGNORED, round_=self._rounds.pop(request.index, -1), now=now)

    def settle(self, request: Request, attempt: AttemptFinished, *, now: float) -> None:
        """Hear a verdict. Who refuses a row's content, or a request for its rate, is there: enough for a probe."""
        verdict = attempt.verdict
        if attempt.kind in _ANSWERED:
            probed = self.breaker.state is CircuitState.HALF_OPEN
            verdict = Verdict.SUCCESS if probed else Verdict.IGNORED
        if verdict is Verdict.DROPPED and attempt.message:
            self.breaker.last_failure = attempt.message
        self.breaker.record(verdict, round_=self._rounds.pop(request.index, -1), now=now)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
