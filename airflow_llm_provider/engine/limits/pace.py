"""The rate that an account turns out to take, learned from its refusals.

An endpoint that states no limits is sent as much as anyone wants until it refuses. Then three numbers tell its rate:
the requests it accepted since the last pause (granted minus refused), the seconds from the first of them on, and how
long it asks to wait. A limit of N in w seconds that is used up at once shows as N accepted and a wait of about w; one
that is used up steadily shows as N accepted in the time gone by. So the rate is ``accepted / max(seconds, wait)``, and
3 % less is sent. Refusals that come in later belong to the same episode: they lower the count, not the rate a second
time.

Where limits are known, a refusal mostly means that requests arrived a little closer together than they were sent, or
that others send on the account. Then the rate goes no lower than what the last window took, so that a handful of
refusals in a row does not multiply.

Some endpoints refuse because they are busy, whatever is sent: a cut does not help there, and after a hundred of them
nothing would be left. So where one refusal follows another before the rate could grow, the rate goes no lower than what
was accepted between two waits of late, in the time that the endpoint asked to wait. A limit that is used up, at
whatever speed, accepts just as much.

After the pause the learned rate holds and grows with the cube of time, as in TCP CUBIC: flat at first, doubled after
``RATE_CALM`` seconds. When the next refusal confirms the rate, that time doubles, so a steady endpoint is probed ever
more seldom. An episode in which nothing was accepted says nothing about the rate: sending starts anew at a few
requests a second and doubles every quarter second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_llm_provider.engine.limits.state import (
    CYCLE_AT,
    CYCLE_GRANTS,
    EPISODE_CEILING,
    EPISODE_FLOOR,
    EPISODE_GRANTS,
    EPISODE_PAUSE,
    EPISODE_RATE,
    EPISODE_REFUSED,
    EPISODE_SECONDS,
    FIRST_CALM,
    KNOWN_CALM,
    LAST_AT,
    PAUSE_BEGAN,
    PAUSED_UNTIL,
    RATE_AT,
    RATE_BASE,
    RATE_CALM,
    RATE_CEILING,
    STREAK,
    STREAK_ACCEPTED,
    STREAK_PAUSED,
    UNLIMITED,
    USED_REQUESTS,
    WINDOW,
    span,
)

if TYPE_CHECKING:
    from airflow_llm_provider.engine.limits.state import State

#: Share of the observed rate that is used.
CAUTION = 0.97
#: Share of what the last window took that is used at least, where limits are known.
KNOWN_CAUTION = 0.99
#: One episode lowers a rate to no less than this share of it.
DEEPEST_CUT = 0.5
#: Requests a second after an episode in which nothing was accepted.
BARREN_RATE = 8.0
#: The lowest rate ever learned, in requests a second: three a minute.
LOWEST_RATE = 0.05
#: Seconds in which the base rate doubles, and how often at most.
DOUBLING = 0.25
DOUBLINGS = 40.0
#: A learned rate that is at least this share of the previous one confirms it.
CONFIRMED = 0.8
#: Episodes in a row that show what an endpoint accepts between two waits.
TELLING_STREAK = 4.0
#: How much of what the episodes before have shown still counts in the next.
FADING = 0.9
#: The longest time until a learned rate doubles by itself, in seconds.
LONGEST_CALM = 1920.0
#: No cycle counts as shorter than this, in seconds.
SHORTEST_CYCLE = 0.05
#: Seconds without a grant after which a cycle starts anew: nothing was held back in them.
IDLE = 2.0
#: The longest pause that is believed, in seconds: a day, as for a daily quota.
LONGEST_PAUSE = 86_400.0


def rate_at(state: State, when: float) -> float:
    """Return the requests a second that the account may be sent at ``when``, as far as is known."""
    grown = max(0.0, when - state[RATE_AT])
    base: float = state[RATE_BASE] * 2.0 ** min(grown / DOUBLING, DOUBLINGS)
    ceiling: float = state[RATE_CEILING] * (1.0 + (grown / state[RATE_CALM]) ** 3)
    return min(base, ceiling, UNLIMITED)


def note_grant(state: State, at: float) -> None:
    """Count a request that goes out at ``at``; to be called before ``LAST_AT`` moves there."""
    first = state[CYCLE_GRANTS] == 0
    idle = at - (state[CYCLE_AT] if first else max(state[LAST_AT], state[CYCLE_AT]))
    if first or idle > IDLE:
        # Time in which nobody asked says nothing about the account: a busy machine takes seconds to begin.
        state[CYCLE_AT] = at
        state[CYCLE_GRANTS] = 0.0
        # A rate grows while it is used, not overnight.
        if first or state[RATE_CEILING] < UNLIMITED:
            state[RATE_AT] += idle
    state[CYCLE_GRANTS] += 1.0


def forget_grant(state: State, made: float) -> None:
    """Count a request no longer: it never went out."""
    if made > state[PAUSE_BEGAN]:
        state[CYCLE_GRANTS] = max(0.0, state[CYCLE_GRANTS] - 1.0)
    elif state[EPISODE_GRANTS] > 0:
        state[EPISODE_GRANTS] -= 1.0
        _learn(state)


def refuse(state: State, granted_at: float, seconds: float, known_rate: float, now: float) -> None:
    """Take in that the endpoint refused a request, and hold back everyone.

    :param granted_at: when the refused request was let out.
    :param seconds: how long everyone waits; 0: no longer than they do already.
    :param known_rate: requests a second by the limits that are known; a cut goes no deeper than half of them.
    """
    if granted_at > state[PAUSE_BEGAN]:
        _begin_episode(state, known_rate, now)
    elif now > state[PAUSED_UNTIL]:
        seconds = 0.0  # a straggler: its wait is over, the news it brings is the count
    state[EPISODE_REFUSED] += 1.0
    until = now + min(seconds, LONGEST_PAUSE)
    if seconds > 0 and until > state[PAUSED_UNTIL]:
        state[PAUSED_UNTIL] = state[CYCLE_AT] = state[RATE_AT] = until
        state[EPISODE_PAUSE] = until - state[PAUSE_BEGAN]
    _learn(state)


def _begin_episode(state: State, known_rate: float, now: float) -> None:
    """Close the cycle that the refusal ends."""
    learned = state[RATE_CEILING] < UNLIMITED
    _note_streak(state, going_on=learned and known_rate >= UNLIMITED and now - state[CYCLE_AT] < FIRST_CALM)
    state[EPISODE_RATE] = min(known_rate, rate_at(state, now)) if learned else known_rate
    state[EPISODE_CEILING] = state[RATE_CEILING]
    state[EPISODE_GRANTS] = state[CYCLE_GRANTS]
    state[EPISODE_SECONDS] = max(0.0, now - state[CYCLE_AT])
    state[EPISODE_REFUSED] = state[EPISODE_PAUSE] = state[CYCLE_GRANTS] = 0.0
    state[PAUSE_BEGAN] = state[CYCLE_AT] = now
    if known_rate < UNLIMITED:
        state[EPISODE_FLOOR] = KNOWN_CAUTION * state[USED_REQUESTS] / span(state[WINDOW])
        state[RATE_CALM] = KNOWN_CALM
    else:
        state[EPISODE_FLOOR] = 0.0
        state[RATE_CALM] = min(state[RATE_CALM] * 2.0, LONGEST_CALM) if learned else FIRST_CALM


def _note_streak(state: State, *, going_on: bool) -> None:
    """Take note of the episode before: its refusals are all known now."""
    if going_on:
        accepted = max(0.0, state[EPISODE_GRANTS] - state[EPISODE_REFUSED])
        state[STREAK] += 1.0
        state[STREAK_ACCEPTED] = FADING * state[STREAK_ACCEPTED] + accepted
        state[STREAK_PAUSED] = FADING * state[STREAK_PAUSED] + state[EPISODE_PAUSE]
    else:
        state[STREAK] = state[STREAK_ACCEPTED] = state[STREAK_PAUSED] = 0.0


def _learn(state: State) -> None:
    """Set the rate by what the refusals have shown so far; more of the episode's may follow."""
    _learn_from_episode(state)
    if state[STREAK] >= TELLING_STREAK and state[STREAK_PAUSED] > 0:
        kept = min(CAUTION * state[STREAK_ACCEPTED] / state[STREAK_PAUSED], state[EPISODE_RATE])
        if kept > state[RATE_CEILING]:
            state[RATE_BASE] = state[RATE_CEILING] = kept


def _learn_from_episode(state: State) -> None:
    before, floor = state[EPISODE_RATE], state[EPISODE_FLOOR]
    accepted = state[EPISODE_GRANTS] - state[EPISODE_REFUSED]
    if accepted <= 0:
        lowest = max(before * DEEPEST_CUT, floor, LOWEST_RATE) if before < UNLIMITED else UNLIMITED
        state[RATE_BASE] = max(min(BARREN_RATE, lowest), floor)
        state[RATE_CEILING] = lowest
        return
    rate = CAUTION * accepted / max(state[EPISODE_SECONDS], state[EPISODE_PAUSE], SHORTEST_CYCLE)
    if before < UNLIMITED:
        rate = min(max(rate, before * DEEPEST_CUT, floor), before * (KNOWN_CAUTION if floor else CAUTION))
    state[RATE_BASE] = state[RATE_CEILING] = max(rate, LOWEST_RATE)
    if not floor and rate < CONFIRMED * state[EPISODE_CEILING]:
        state[RATE_CALM] = FIRST_CALM
