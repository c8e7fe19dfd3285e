"""What an endpoint says about its limits, held against what we wrote down ourselves."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_llm_provider.engine.limits.state import (
    LEARNED_REQUESTS,
    LEARNED_TOKENS,
    OBSERVED,
    RING,
    SLOTS,
    TAIL,
    USED_REQUESTS,
    USED_TOKENS,
)
from airflow_llm_provider.engine.limits.window import charge, used_before

if TYPE_CHECKING:
    from airflow_llm_provider.engine.call import RateHint
    from airflow_llm_provider.engine.limits.state import State

#: A difference to the endpoint's count that is no more than this share of its limit is not corrected.
TOLERANCE = 0.01
#: Seconds that a stated limit is for.
_MINUTE = 60.0
#: Seconds to refill a whole request limit from which on it is taken for a daily one.
_DAILY = 40_000.0
#: Takes the place of a limit that is none; what was learned before is forgotten with it.
_NO_LIMIT = 10**12


def per_minute(hint: RateHint, *, window: float = _MINUTE) -> RateHint:
    """Keep what compares with our ledger: limits a minute, and what is left of them if the ledger covers a minute.

    Some endpoints state their requests *per day* in the same header. Those refill one request in
    ``86,400 / limit`` seconds, which ``reset`` gives away: the seconds until what was taken is refilled.
    """
    limit, remaining, reset = hint.limit_requests, hint.remaining_requests, hint.reset_requests
    if limit and remaining is not None and reset is not None and remaining < limit:
        daily = reset * limit / (limit - remaining) >= _DAILY
        if daily:
            hint = replace(hint, limit_requests=None, remaining_requests=None)
    if window < _MINUTE:
        hint = replace(hint, remaining_requests=None, remaining_tokens=None)
    return hint


class AnsweredLately:
    """What an endpoint has answered in the last window: more than a true limit lets through.

    :param window: seconds.
    """

    def __init__(self, window: float) -> None:
        self._window = window
        self._answers: deque[tuple[float, int]] = deque()
        self._tokens = 0

    def add(self, tokens: int, now: float) -> None:
        """Take in an answer and what it took."""
        self._answers.append((now, tokens))
        self._tokens += tokens
        while self._answers[0][0] <= now - self._window:
            self._tokens -= self._answers.popleft()[1]

    def believable(self, hint: RateHint) -> RateHint:
        """Replace limits that the endpoint evidently does not keep to, such as one token a minute, by none.

        A bucket that refills while it is used lets through twice its limit in one window, and no more.
        """
        share = self._window / _MINUTE
        if hint.limit_requests and len(self._answers) > max(1.0, 2 * hint.limit_requests * share):
            hint = replace(hint, limit_requests=_NO_LIMIT, remaining_requests=None)
        if hint.limit_tokens and self._tokens > 2 * hint.limit_tokens * share:
            hint = replace(hint, limit_tokens=_NO_LIMIT, remaining_tokens=None)
        return hint


def observe(state: State, slot: int, hint: RateHint) -> None:
    """Take in what the endpoint said about a request granted in ``slot``.

    Its limits are remembered. When it has less left than our ledger, somebody else sends on the account, or it counts
    more than we do: the difference is charged to that slot, so that it weighs on the same windows as if it had been
    ours. It never gives us more: what the endpoint has not seen yet is still on its way.
    """
    if hint.limit_requests:
        state[LEARNED_REQUESTS] = hint.limit_requests
    if hint.limit_tokens:
        state[LEARNED_TOKENS] = hint.limit_tokens
    # Answers overtake each other; only one about a newer request than any before can tell something new.
    if slot <= state[OBSERVED] or int(state[TAIL]) - slot > RING - SLOTS:
        return
    requests = _drift(hint.limit_requests, hint.remaining_requests, state[USED_REQUESTS])
    tokens = _drift(hint.limit_tokens, hint.remaining_tokens, state[USED_TOKENS])
    if not requests and not tokens:
        return
    # The sums above are of now; the endpoint spoke of then.
    used_requests, used_tokens = used_before(state, slot)
    requests = _drift(hint.limit_requests, hint.remaining_requests, used_requests)
    tokens = _drift(hint.limit_tokens, hint.remaining_tokens, used_tokens)
    if requests or tokens:
        state[OBSERVED] = slot
        charge(state, slot, requests, tokens)


def _drift(limit: int | None, left: int | None, used: float) -> float:
    """Return how much less the endpoint has left than we think; 0: nothing to correct."""
    if not limit or left is None:
        return 0.0
    drift = limit - used - max(0, left)
    return drift if drift > max(1.0, TOLERANCE * limit) else 0.0
