"""How long everyone pauses when the endpoint refuses requests for their rate. Pure: no clock, no sleep."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from airflow_llm_provider.engine.retry import RetryConfig, asked_wait

if TYPE_CHECKING:
    import random

    from airflow_llm_provider.engine.call import CallError


class Cooldown:
    """Turns many refusals into one pause an episode.

    Requests in flight when the first refusal arrives are refused as well, and say nothing new: only a refusal of a
    request sent *after* the pause began starts another, longer one.
    """

    def __init__(self, config: RetryConfig, rng: random.Random) -> None:
        self._config = config
        self._rng = rng
        self._began = -math.inf
        self._seconds = 0.0
        self._episodes = 0

    def on_rate_limited(self, error: CallError, *, sent_at: float, now: float) -> float:
        """Return the seconds for which everyone shall pause from now; 0: the pause under way covers this refusal.

        :param sent_at: when the refused request went out.
        """
        asked = asked_wait(error)
        if sent_at <= self._began and (asked is None or asked <= self._seconds):
            return 0.0
        if sent_at > self._began:
            self._episodes += 1
        self._began = now
        self._seconds = self._backoff() if asked is None else asked
        return self._seconds

    def on_success(self, *, sent_at: float) -> None:
        """Forget past episodes once a request sent after the last one came through."""
        if self._episodes and sent_at > self._began:
            self._episodes = 0

    def _backoff(self) -> float:
        """Choose a pause when the endpoint named none: between half the bound and the bound."""
        return self._config.backoff_bound(self._episodes) * (0.5 + 0.5 * self._rng.random())
