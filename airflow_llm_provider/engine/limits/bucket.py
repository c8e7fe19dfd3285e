"""The bucket: takes requests and tokens together, in one step, and says when the request may go out.

Debt-based: a request is granted as soon as earlier debts are paid down to the burst, and its own cost is then the
debt of those after it. So a request larger than the burst needs no special case, each request sleeps once, and
callers are served in the order in which they asked.

The maths, for a limit L in a window of W seconds (requests and tokens alike):

* Debts are paid at ``L / span`` with ``span = W * 516 / 512``, so the bucket alone lets ``burst + 0.99 L`` plus one
  request through in a window: smooth, without a rush at the start of each window, but not exact.
* :mod:`~airflow_llm_provider.engine.limits.window` is exact: no half-open window of W seconds ever holds more than L,
  whatever the burst, the sizes and the corrections. Once the burst is spent, debts keep the pace and the ledger
  hardly ever has to hold anything back.
* A correction (a refund, or an answer longer than expected) counts in the slot in which its request was granted, and
  in the debt. A refund hence serves the windows that hold the request, and no other.
* The ledger counts what is reserved, so an answer longer than what was reserved for it can take its window above L.
  :mod:`~airflow_llm_provider.engine.limits.output` keeps that from happening, and ``reserve="cap"`` rules it out.

At full load that is 99 % of L in any window, unless requests are so large against L that whole ones do not fill it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from airflow_llm_provider.engine.limits import pace
from airflow_llm_provider.engine.limits.state import (
    DEBT_REQUESTS,
    DEBT_TOKENS,
    HALT_AT,
    HALT_KIND,
    HELD,
    LAST_AT,
    LEARNED_REQUESTS,
    LEARNED_TOKENS,
    PAUSE_BEGAN,
    PAUSED_UNTIL,
    RATE_CEILING,
    SCOPED_HALT_AT,
    SCOPED_HALT_KIND,
    SLOTS,
    TRUSTED_AT,
    TRUSTED_SCOPE,
    UNLIMITED,
)
from airflow_llm_provider.engine.limits.window import advance, charge, first_fit

if TYPE_CHECKING:
    from airflow_llm_provider.engine.limits.state import State

#: Seconds in a minute, the time for which limits are stated.
_MINUTE = 60.0
#: Burst unless one is given: this share of a window's limit.
BURST_SHARE = 0.01
#: Seconds' worth of a learned rate that may go out at once.
LEARNED_BURST = 0.01
#: Seconds for which an answer vouches for the next requests of its kind.
TRUST = 300.0
#: Kinds of halts that are for everyone; a larger number says as well whom it is for.
KINDS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """What one sender knows of the limits; senders on the same account may know different things.

    :param window: seconds in which the limit may be used once.
    :param max_requests: requests a window; :data:`~airflow_llm_provider.engine.limits.state.UNLIMITED`: not known.
    :param max_tokens: tokens a window.
    :param burst: requests that may go out at once after a quiet time; 0: one hundredth of the limit.
    :param learns: whether limits that the endpoint states count as well.
    """

    window: float = 60.0
    max_requests: float = UNLIMITED
    max_tokens: float = UNLIMITED
    burst: float = 0.0
    learns: bool = True


class Grant(NamedTuple):
    """Capacity taken.

    :param at: when the request may go out.
    :param slot: where it is written down.
    :param tokens: tokens taken.
    :param made: when it was taken.
    """

    at: float
    slot: int
    tokens: float
    made: float


class Later(NamedTuple):
    """Nothing taken: the request could not go out within the horizon.

    :param at: when to ask again at the earliest.
    :param now: the backend's time.
    :param paused: a pause is the reason, and ends at ``at``.
    """

    at: float
    now: float
    paused: bool


class TooLarge(NamedTuple):
    """Nothing taken: the request is larger than the limit itself.

    :param max_tokens: that limit, tokens a window.
    """

    max_tokens: float


class Halted(NamedTuple):
    """Nothing taken: somebody halted the account.

    :param kind: why, as the number that :func:`halt` was given.
    :param at: when.
    """

    kind: int
    at: float


Answer = Grant | Later | TooLarge | Halted


def limits(state: State, terms: Terms) -> tuple[float, float]:
    """Return requests and tokens a window: the lower of what the sender knows and what the endpoint states."""
    max_requests, max_tokens = terms.max_requests, terms.max_tokens
    if terms.learns:
        share = terms.window / _MINUTE
        if state[LEARNED_REQUESTS]:
            max_requests = min(max_requests, max(1.0, state[LEARNED_REQUESTS] * share))
        if state[LEARNED_TOKENS]:
            max_tokens = min(max_tokens, max(1.0, state[LEARNED_TOKENS] * share))
    return max_requests, max_tokens


def take(
    state: State, terms: Terms, *, tokens: float, least: float, horizon: float, since: float, now: float
) -> Answer:
    """Take one request and its tokens.

    :param tokens: what to reserve; lowered to the limit when only the expected answer takes it beyond.
    :param least: what the request takes for certain.
    :param horizon: seconds; nothing is taken for later than that from now, so that capacity given back meanwhile is
        not missed, and little is lost with a sender that dies.
    :param since: when the sender began; a halt before that is not its own.
    """
    for since_when, kind in ((HALT_AT, HALT_KIND), (SCOPED_HALT_AT, SCOPED_HALT_KIND)):
        if state[since_when] >= since:
            return Halted(int(state[kind]), state[since_when])
    max_requests, max_tokens = limits(state, terms)
    if least > max_tokens:
        return TooLarge(max_tokens)
    tokens = min(tokens, max_tokens)
    last_at, paused_until = state[LAST_AT], state[PAUSED_UNTIL]
    if paused_until > now + horizon:
        return Later(paused_until, now, paused=True)
    start = max(now, last_at, paused_until)
    rate, burst, token_rate, token_burst = _steady(state, terms, (max_requests, max_tokens), tokens, start)
    at = max(
        start,
        last_at + (state[DEBT_REQUESTS] - burst) / rate,
        last_at + (state[DEBT_TOKENS] - token_burst) / token_rate,
    )
    if at > now + horizon:
        return Later(at, now, paused=False)
    width = terms.window / SLOTS
    first = math.floor(at / width)
    last = math.floor((now + horizon) / width) if horizon < UNLIMITED else first + HELD
    slot = first_fit(state, first, last, tokens, (max_requests, max_tokens))
    if slot < 0:
        return Later(now + horizon, now, paused=False)
    if slot > first:
        at = max(at, slot * width)
    pace.note_grant(state, at)
    passed = at - last_at
    state[DEBT_REQUESTS] = max(0.0, state[DEBT_REQUESTS] - rate * passed) + 1.0
    state[DEBT_TOKENS] = max(0.0, state[DEBT_TOKENS] - token_rate * passed) + tokens
    state[LAST_AT] = at
    charge(state, slot, 1.0, tokens)
    return Grant(at, slot, tokens, now)


def _steady(
    state: State, terms: Terms, maxima: tuple[float, float], tokens: float, when: float
) -> tuple[float, float, float, float]:
    """Return the rate at which debts of requests are paid and the debt that may stand, and both for tokens."""
    max_requests, max_tokens = maxima
    span = terms.window * HELD / SLOTS
    learned = pace.rate_at(state, when)
    burst = terms.burst - 1.0 if terms.burst else BURST_SHARE * max_requests
    token_burst = burst * tokens if terms.burst else BURST_SHARE * max_tokens
    if max_requests >= UNLIMITED or state[RATE_CEILING] < UNLIMITED:
        burst = min(burst, LEARNED_BURST * learned)
    return min(max_requests / span, learned), burst, max_tokens / span, token_burst


def settle(state: State, slot: int, requests: float, tokens: float) -> None:
    """Correct what was granted in ``slot`` by that many requests and tokens, more or fewer."""
    charge(state, slot, requests, tokens)
    state[DEBT_REQUESTS] = max(0.0, state[DEBT_REQUESTS] + requests)
    state[DEBT_TOKENS] = max(0.0, state[DEBT_TOKENS] + tokens)


def give_back(state: State, slot: int, tokens: float, made: float) -> None:
    """Undo a grant whose request never went out."""
    settle(state, slot, -1.0, -tokens)
    pace.forget_grant(state, made)


def delay(state: State, grant: Grant, *, window: float, now: float) -> Grant:
    """Write a grant down where its request really goes out: its sender woke up late.

    Windows that hold both slots hold no more than before; those that hold only the new one get it from now on.
    """
    slot = math.floor(now / (window / SLOTS))
    if slot <= grant.slot:
        return grant
    advance(state, slot)
    charge(state, grant.slot, -1.0, -grant.tokens)
    charge(state, slot, 1.0, grant.tokens)
    return grant._replace(at=now, slot=slot)


def is_overtaken(state: State, made: float) -> bool:
    """Tell whether a pause or a halt began after a grant was made."""
    return max(state[PAUSE_BEGAN], state[HALT_AT], state[SCOPED_HALT_AT]) >= made


def refuse(state: State, terms: Terms, *, granted_at: float, seconds: float, now: float) -> None:
    """Take in that the endpoint refused a request granted at ``granted_at``: hold back everyone, and learn."""
    max_requests, _ = limits(state, terms)
    known_rate = max_requests / (terms.window * HELD / SLOTS) if max_requests < UNLIMITED else UNLIMITED
    pace.refuse(state, granted_at, seconds, known_rate, now)


def halt(state: State, kind: int, now: float) -> None:
    """Tell everyone who sends now that every request would fail.

    :param kind: why; from :data:`KINDS` on, only for those whose requests are alike. The two are kept apart, so that the
        one never hides the other.
    """
    state[TRUSTED_SCOPE] = 0.0
    if kind < KINDS:
        state[HALT_AT], state[HALT_KIND] = now, float(kind)
    else:
        state[SCOPED_HALT_AT], state[SCOPED_HALT_KIND] = now, float(kind)


def trust(state: State, scope: int, made: float, now: float) -> None:
    """Note that a request was answered, unless a halt overtook it: of the next one, the refusal says more.

    :param scope: its kind, a whole number of at least 1.
    :param made: when it was granted.
    """
    if max(state[HALT_AT], state[SCOPED_HALT_AT]) < made:
        state[TRUSTED_AT], state[TRUSTED_SCOPE] = now, float(scope)


def is_trusted(state: State, scope: int, now: float) -> bool:
    """Tell whether a request of that kind was the last that was noted, a moment ago, and nobody halted since."""
    return state[TRUSTED_SCOPE] == scope and 0.0 <= now - state[TRUSTED_AT] <= TRUST
