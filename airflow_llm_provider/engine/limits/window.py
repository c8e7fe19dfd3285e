"""The ledger of the last window: who took how much when, so that no window ever holds more than the limit.

A bucket alone cannot promise that: filled at rate r with room for a burst B it lets B + r W through in a window W, and
with requests that are large against the limit, or with capacity given back late, much more or much less than the
limit. So every grant is also written down in its slot of time, and a request goes into the first slot at which the
``HELD`` slots up to it hold no more than the limit, itself included. Any window of W seconds touches at most
``SLOTS + 1`` slots, fewer than ``HELD``, hence holds no more than the limit. At full load a limit is used to
``SLOTS / HELD`` = 99 %: the rest is slack for requests that travel at different speeds.

Corrections go to the slot in which the request was granted, so capacity that one window did not use is never carried
into another. All amounts are whole numbers, so sums in floating point stay exact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_llm_provider.engine.limits.state import (
    HEADER,
    HELD,
    RING,
    SLOTS,
    TAIL,
    USED_REQUESTS,
    USED_TOKENS,
)

if TYPE_CHECKING:
    from airflow_llm_provider.engine.limits.state import State


def advance(state: State, slot: int) -> None:
    """Make ``slot`` the newest, forgetting what is then out of the ring; a slot of the past changes nothing."""
    tail = int(state[TAIL])
    if slot <= tail:
        return
    if slot - tail >= RING:
        for index in range(HEADER, HEADER + 2 * RING):
            state[index] = 0.0
        state[USED_REQUESTS] = state[USED_TOKENS] = 0.0
    else:
        for number in range(tail + 1, slot + 1):
            leaving = HEADER + 2 * ((number - HELD) % RING)
            if state[leaving]:
                state[USED_REQUESTS] -= state[leaving]
            if state[leaving + 1]:
                state[USED_TOKENS] -= state[leaving + 1]
            entering = HEADER + 2 * (number % RING)
            state[entering] = state[entering + 1] = 0.0
    state[TAIL] = slot


def first_fit(state: State, first: int, last: int, tokens: float, maxima: tuple[float, float]) -> int:
    """Make that slot from ``first`` to ``last`` the newest into which a request fits, and return it; -1: none.

    :param maxima: requests and tokens that the ring may hold.
    """
    max_requests, max_tokens = maxima
    slot = max(first, int(state[TAIL]))
    advance(state, slot)
    while state[USED_REQUESTS] + 1.0 > max_requests or state[USED_TOKENS] + tokens > max_tokens:
        if slot >= last:
            return -1
        slot += 1
        advance(state, slot)
    return slot


def charge(state: State, slot: int, requests: float, tokens: float) -> None:
    """Add to what was granted in ``slot``, or take away; a slot that is forgotten already matters to nobody."""
    age = int(state[TAIL]) - slot
    if age >= RING:
        return
    index = HEADER + 2 * (slot % RING)
    # A correction never makes a slot negative, which would lend capacity to its window.
    requests = max(requests, -state[index])
    tokens = max(tokens, -state[index + 1])
    state[index] += requests
    state[index + 1] += tokens
    if age < HELD:
        state[USED_REQUESTS] += requests
        state[USED_TOKENS] += tokens


def used_before(state: State, slot: int) -> tuple[float, float]:
    """Return what one window's slots up to ``slot`` hold, a slot no older than one window."""
    requests = tokens = 0.0
    for number in range(slot - SLOTS + 1, slot + 1):
        index = HEADER + 2 * (number % RING)
        requests += state[index]
        tokens += state[index + 1]
    return requests, tokens
