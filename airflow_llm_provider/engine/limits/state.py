"""What all senders on one account share, as a flat row of numbers: the same in memory, in a file and in Redis.

The first ``HEADER`` numbers are named below; after them come ``RING`` pairs (requests, tokens), one per slot of time.
Times are seconds of the backend's clock. Zeros are a valid new state once :func:`initialise` ran over them.
"""

from __future__ import annotations

import math
from typing import Protocol

#: Slots that one window of time is cut into.
SLOTS = 512
#: Slots of slack: one because a window seldom begins where a slot begins, the others for requests that travel at
#: different speeds (0.6 % of the window: 0.35 s of a minute).
GUARD = 4
#: What that many slots up to any one hold together never exceeds the limit.
HELD = SLOTS + GUARD
#: Slots remembered. Older ones tell what had been used when an answer that took long was asked for.
RING = 2 * SLOTS
#: Numbers before the ring.
HEADER = 39
#: Numbers in all.
LENGTH = HEADER + 2 * RING
#: Stands for "no limit". Finite, so that no arithmetic ever meets NaN.
UNLIMITED = 1e15
#: Marks an initialised state of this layout.
LAYOUT = 20_255.0

FIELDS = (
    "MAGIC",  # LAYOUT
    "BUSY",  # 1 while somebody writes: a 1 found on entry means that the writer died halfway
    "WINDOW",  # seconds of one window
    "TAIL",  # newest slot of the ring, counted from time 0
    "LAST_AT",  # when the latest request granted so far may go out; debts are as of then
    "USED_REQUESTS",  # sum of the newest HELD slots
    "USED_TOKENS",
    "DEBT_REQUESTS",  # granted beyond what the steady rate had paid for
    "DEBT_TOKENS",
    "PAUSED_UNTIL",  # nobody sends before
    "PAUSE_BEGAN",  # requests granted until then belong to that refusal's episode
    "CYCLE_AT",  # since when CYCLE_GRANTS counts: the first request after a pause or idle time
    "CYCLE_GRANTS",
    "EPISODE_GRANTS",  # the finished cycle, frozen when a refusal ended it
    "EPISODE_REFUSED",
    "EPISODE_SECONDS",
    "EPISODE_PAUSE",
    "EPISODE_RATE",  # requests a second that were allowed when it was refused
    "EPISODE_CEILING",  # RATE_CEILING before it
    "EPISODE_FLOOR",  # requests a second that the last window took, if limits are known
    "STREAK",  # episodes in a row that began before the rate could grow; what they accepted, and their pauses, fading
    "STREAK_ACCEPTED",
    "STREAK_PAUSED",
    "RATE_BASE",  # requests a second at RATE_AT; doubles until RATE_CEILING
    "RATE_CEILING",
    "RATE_AT",
    "RATE_CALM",  # seconds until a learned rate has doubled by itself
    "LEARNED_REQUESTS",  # limits a minute as the endpoint states them; 0: it does not
    "LEARNED_TOKENS",
    "OBSERVED",  # newest slot whose remaining capacity has been compared with the endpoint's
    "HALT_AT",  # when somebody met a failure that everyone would meet
    "HALT_KIND",
    "SCOPED_HALT_AT",  # the same of a failure that all with the same kind of requests would meet
    "SCOPED_HALT_KIND",
    "TRUSTED_AT",  # when a request was last known to be answered, and of which kind; 0: none
    "TRUSTED_SCOPE",
    "TOUCHED",  # latest time seen, by the backend's clock and by the calendar
    "TOUCHED_EPOCH",
    "BOOT",  # which boot of which machine the clock belongs to
)
(
    MAGIC,
    BUSY,
    WINDOW,
    TAIL,
    LAST_AT,
    USED_REQUESTS,
    USED_TOKENS,
    DEBT_REQUESTS,
    DEBT_TOKENS,
    PAUSED_UNTIL,
    PAUSE_BEGAN,
    CYCLE_AT,
    CYCLE_GRANTS,
    EPISODE_GRANTS,
    EPISODE_REFUSED,
    EPISODE_SECONDS,
    EPISODE_PAUSE,
    EPISODE_RATE,
    EPISODE_CEILING,
    EPISODE_FLOOR,
    STREAK,
    STREAK_ACCEPTED,
    STREAK_PAUSED,
    RATE_BASE,
    RATE_CEILING,
    RATE_AT,
    RATE_CALM,
    LEARNED_REQUESTS,
    LEARNED_TOKENS,
    OBSERVED,
    HALT_AT,
    HALT_KIND,
    SCOPED_HALT_AT,
    SCOPED_HALT_KIND,
    TRUSTED_AT,
    TRUSTED_SCOPE,
    TOUCHED,
    TOUCHED_EPOCH,
    BOOT,
) = range(len(FIELDS))

#: Requests a second of an account that nothing is known of, when its first request goes out. It doubles every
#: quarter second: full speed long before anyone notices, yet the first requests do not all leave at one instant.
FIRST_RATE = 800.0
#: Seconds until a learned rate has doubled by itself.
FIRST_CALM = 60.0
#: The same where limits are known: they bound the rate anyway.
KNOWN_CALM = 20.0


class State(Protocol):
    """A mutable row of :data:`LENGTH` numbers: an ``array``, a ``memoryview`` of a mapped file."""

    def __getitem__(self, index: int, /) -> float: ...
    def __setitem__(self, index: int, value: float, /) -> None: ...


def span(window: float) -> float:
    """Return the seconds over which the limit is never exceeded: a little more than the window."""
    return window * HELD / SLOTS


def initialise(state: State, *, window: float, now: float) -> None:
    """Make ``state`` that of an account on which nothing has been sent yet."""
    for index in range(LENGTH):
        state[index] = 0.0
    state[WINDOW] = window
    state[TAIL] = math.floor(now / (window / SLOTS))
    state[OBSERVED] = state[TAIL] - 1.0
    state[LAST_AT] = state[CYCLE_AT] = state[RATE_AT] = state[TOUCHED] = now
    state[PAUSE_BEGAN] = state[HALT_AT] = state[SCOPED_HALT_AT] = -math.inf
    state[RATE_BASE] = FIRST_RATE
    state[RATE_CEILING] = UNLIMITED
    state[RATE_CALM] = FIRST_CALM
    state[MAGIC] = LAYOUT


def initialise_spent(state: State, *, window: float, now: float) -> None:
    """Make ``state`` that of an account of which we know nothing any more: its limit may just have been used up."""
    initialise(state, window=window, now=now)
    state[PAUSED_UNTIL] = state[CYCLE_AT] = state[RATE_AT] = now + span(window)


def is_sound(state: State, *, window: float, now: float) -> bool:
    """Tell whether ``state`` can have been written by us; if not, it is not to be believed at all."""
    header = [state[index] for index in range(len(FIELDS))]
    if header[MAGIC] != LAYOUT or header[WINDOW] != window or any(math.isnan(number) for number in header):
        return False
    # Reservations reach a little ahead of now, pauses up to days; neither reaches a year.
    if not all(
        -UNLIMITED < header[index] < now + 3.2e7 for index in (LAST_AT, PAUSED_UNTIL, CYCLE_AT, RATE_AT)
    ):
        return False
    if header[TAIL] != math.floor(header[TAIL]) or header[RATE_BASE] <= 0 or header[RATE_CALM] <= 0:
        return False
    return all(0 <= state[index] < UNLIMITED for index in range(HEADER, LENGTH))


def resum(state: State) -> None:
    """Bring the sums in line with the ring: the last writer died between the two."""
    tail = int(state[TAIL])
    entries = [HEADER + 2 * (slot % RING) for slot in range(tail - HELD + 1, tail + 1)]
    state[USED_REQUESTS] = sum(state[index] for index in entries)
    state[USED_TOKENS] = sum(state[index + 1] for index in entries)


def rebase(state: State, *, window: float, now: float, epoch: float) -> None:
    """Carry a state over to a clock that started anew, as after a reboot; the calendar tells how long that took.

    A pause goes on and what was learned is kept. When less than a window has passed, as far as anyone can tell, the
    rest of it is waited for.
    """
    gone = max(0.0, epoch - state[TOUCHED_EPOCH])
    pause = state[PAUSED_UNTIL] - state[TOUCHED] - gone
    kept = {index: state[index] for index in (RATE_CEILING, RATE_CALM, LEARNED_REQUESTS, LEARNED_TOKENS)}
    initialise(state, window=window, now=now)
    for index, value in kept.items():
        state[index] = value
    rest = max(0.0, span(window) - gone, pause)
    state[PAUSED_UNTIL] = state[CYCLE_AT] = state[RATE_AT] = now + rest
