"""Whether a row is tried again, and after how long. Pure: no clock, no sleep."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_llm_provider.engine.call import CallError, FailureKind
from airflow_llm_provider.errors import LLMInputError

if TYPE_CHECKING:
    import random

#: Doubling stops here: 2 ** 30 times any useful backoff is beyond every bound.
_MAX_DOUBLINGS = 30


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryConfig:
    """How often and how patiently a row is tried.

    :param max_attempts: failed requests per row after which it ends as an error. Requests refused for their rate do
        not count: time mends those.
    :param initial_backoff: seconds; the longest wait after the first failure. Waits are drawn evenly between 0 and a
        bound that doubles with every failure.
    :param max_backoff: seconds; the longest wait that we choose ourselves.
    :param max_output_attempts: completions per row, when asking again may mend an unusable one. All are billed.
    :param max_retry_after: seconds; an endpoint that asks to wait longer ends the run as retryable, so that nobody
        holds pool slots meanwhile. Shorter requests to wait are always honoured in full.
    :param max_rate_limited: requests per row that may be refused for their rate.
    :param max_rate_limited_seconds: seconds since a row's first such refusal after which it is not tried again.
    """

    max_attempts: int = 5
    initial_backoff: float = 1.0
    max_backoff: float = 60.0
    max_output_attempts: int = 2
    max_retry_after: float = 300.0
    max_rate_limited: int = 100
    max_rate_limited_seconds: float = 1800.0

    def __post_init__(self) -> None:
        for name in ("max_attempts", "max_output_attempts", "max_rate_limited"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise LLMInputError(f"RetryConfig.{name} is {value!r}: give a whole number of at least 1")
        for name in ("initial_backoff", "max_backoff", "max_retry_after", "max_rate_limited_seconds"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
                raise LLMInputError(
                    f"RetryConfig.{name} is {value!r}: give a finite number of seconds, at least 0"
                )
        if self.max_backoff < self.initial_backoff:
            raise LLMInputError(
                f"RetryConfig.max_backoff is {self.max_backoff}, less than initial_backoff "
                f"({self.initial_backoff}): raise it"
            )

    def backoff_bound(self, failures: int) -> float:
        """Return the longest wait after that many failures in a row."""
        doublings = min(max(failures, 1) - 1, _MAX_DOUBLINGS)
        return min(self.max_backoff, self.initial_backoff * float(1 << doublings))


@dataclass(kw_only=True, slots=True)
class Tries:
    """What has been tried for one row so far, the latest try included.

    :param failures: requests that failed for other reasons than their rate.
    :param outputs: completions that came back.
    :param rate_limited: requests refused for their rate.
    :param rate_limited_since: when the first of those was refused.
    """

    failures: int = 0
    outputs: int = 0
    rate_limited: int = 0
    rate_limited_since: float = 0.0

    def count(self, error: CallError, *, now: float) -> None:
        """Count a failed request."""
        if error.kind is FailureKind.RATE_LIMITED:
            if not self.rate_limited:
                self.rate_limited_since = now
            self.rate_limited += 1
        else:
            self.failures += 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Retry:
    """Try the row again after ``wait`` seconds."""

    wait: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class GiveUp:
    """The row ends with what it has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StopRun:
    """Nobody should go on now: end the run as retryable, rows stay pending.

    :param reason: for a person; no row text.
    :param retry_after: seconds after which it makes sense to come back.
    """

    reason: str
    retry_after: float


Decision = Retry | GiveUp | StopRun
_GIVE_UP = GiveUp()
_RETRY_NOW = Retry()


class RetryPolicy:
    """Decides about the next attempt at a row.

    :param rng: source of the jitter.
    """

    def __init__(self, config: RetryConfig, rng: random.Random) -> None:
        self._config = config
        self._rng = rng

    def on_error(self, error: CallError, tries: Tries, *, now: float, last_success: float) -> Decision:
        """Decide after a retryable failure.

        :param tries: what was tried for the row, this failure included.
        :param last_success: when a completion for any row last came back; ``-inf``: never.
        """
        asked = asked_wait(error)
        if asked is not None and asked > self._config.max_retry_after:
            return StopRun(
                reason=f"the endpoint asks to wait {asked:.0f} s ({error.code}), longer than the "
                f"{self._config.max_retry_after:.0f} s that are waited for",
                retry_after=asked,
            )
        if error.kind is FailureKind.RATE_LIMITED:
            return self._on_rate_limited(error, tries, asked=asked, now=now, last_success=last_success)
        if tries.failures >= self._config.max_attempts:
            return _GIVE_UP
        return Retry(wait=self._wait(asked, tries.failures))

    def on_output(self, tries: Tries) -> Decision:
        """Decide after a completion that asking again may better."""
        return _RETRY_NOW if tries.outputs < self._config.max_output_attempts else _GIVE_UP

    def _on_rate_limited(
        self, error: CallError, tries: Tries, *, asked: float | None, now: float, last_success: float
    ) -> Decision:
        config = self._config
        waited = now - tries.rate_limited_since
        if tries.rate_limited < config.max_rate_limited and waited < config.max_rate_limited_seconds:
            return Retry(wait=self._wait(asked, tries.rate_limited))
        if last_success > tries.rate_limited_since:  # others get through: it is this row
            return _GIVE_UP
        return StopRun(
            reason=f"the endpoint refused {tries.rate_limited} requests in a row for their rate ({error.code}) "
            f"over {waited:.0f} s and let none through",
            retry_after=config.max_backoff if asked is None else asked,
        )

    def _wait(self, asked: float | None, failures: int) -> float:
        """Return the asked wait plus a little, so that not all come back at once; never less than asked."""
        if asked is not None:
            return asked + self._rng.random() * self._config.initial_backoff
        return self._rng.random() * self._config.backoff_bound(failures)


def asked_wait(error: CallError) -> float | None:
    """Return the seconds that the endpoint asked to wait; ``None`` when it said nothing sensible."""
    asked = error.retry_after
    if asked is None or not math.isfinite(asked):
        return None
    return max(asked, 0.0)
