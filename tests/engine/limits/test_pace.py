"""Learning an unknown rate, against endpoints that enforce theirs in the usual ways."""

import random
from array import array
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llm_provider.engine.limits import bucket, pace
from airflow_llm_provider.engine.limits.bucket import Later, Terms
from airflow_llm_provider.engine.limits.state import (
    CYCLE_GRANTS,
    LENGTH,
    PAUSED_UNTIL,
    RATE_CALM,
    RATE_CEILING,
    UNLIMITED,
    initialise,
)

KNOWN_NOTHING = Terms()


def new_state(now=1000.0):
    state = array("d", bytes(8 * LENGTH))
    initialise(state, window=60.0, now=now)
    return state


def take(state, now):
    return bucket.take(state, KNOWN_NOTHING, tokens=0, least=0, horizon=0.25, since=UNLIMITED, now=now)


def grant(state, now):
    answer = take(state, now)
    return None if isinstance(answer, Later) else answer.at


class SlidingWindow:
    """Accepts ``limit`` requests in any second."""

    def __init__(self, limit):
        self.limit, self.accepted = limit, deque()

    def accepts(self, now):
        while self.accepted and self.accepted[0] <= now - 1.0:
            self.accepted.popleft()
        if len(self.accepted) < self.limit:
            self.accepted.append(now)
            return True
        return False


class FixedWindow:
    """Accepts ``limit`` requests in every second of the clock."""

    def __init__(self, limit):
        self.limit, self.second, self.count = limit, 0, 0

    def accepts(self, now):
        if int(now) != self.second:
            self.second, self.count = int(now), 0
        self.count += 1
        return self.count <= self.limit


class TokenBucket:
    """Accepts ``limit`` requests a second, and as many at once after a quiet second."""

    def __init__(self, limit):
        self.limit, self.level, self.at = limit, float(limit), 0.0

    def accepts(self, now):
        self.level = min(self.limit, self.level + (now - self.at) * self.limit)
        self.at = now
        if self.level >= 1:
            self.level -= 1
            return True
        return False


class Busy:
    """Refuses a share of the requests, whatever is sent."""

    def __init__(self, share):
        self.share, self.random = share, random.Random(4)

    def accepts(self, now):
        return self.random.random() >= self.share


def run(server, rows, *, in_flight=64, answer=0.05, refusal=0.004, retry_after=1.0, begin=0.0):
    """Send rows through the bucket to a server, in virtual time; return seconds and refusals.

    :param begin: seconds after the limiter was made.
    """
    state, now, end = new_state(), 1000.0 + begin, 5000.0
    admitted = deque()  # grants whose time has not come
    pending = []  # (time, when granted if it was refused) of answers on their way, soonest first
    waiting, done, refused = rows, 0, 0
    while done < rows and now < end:
        while admitted and admitted[0].at <= now:
            granted = admitted.popleft()
            if bucket.is_overtaken(state, granted.made):
                bucket.give_back(state, granted.slot, 0, granted.made)
                waiting += 1
            elif server.accepts(now):
                pending.append((now + answer, None))
            else:
                pending.append((now + refusal, granted.at))
        pending.sort(key=lambda event: event[0])
        while pending and pending[0][0] <= now:
            _, granted_at = pending.pop(0)
            if granted_at is None:
                done += 1
            else:
                refused += 1
                waiting += 1
                bucket.refuse(state, KNOWN_NOTHING, granted_at=granted_at, seconds=retry_after, now=now)
        while waiting and len(admitted) + len(pending) < in_flight:
            taken = take(state, now)
            if isinstance(taken, Later):
                break
            waiting -= 1
            admitted.append(taken)
        now += 0.001
    return now - 1000.0 - begin, refused


class TestUnknownRate:
    @pytest.mark.parametrize("server", [SlidingWindow(100), TokenBucket(100)], ids=["sliding", "bucket"])
    def test_a_hundred_a_second_is_found_at_the_first_refusal(self, server):
        seconds, refused = run(server, 1000)
        assert seconds <= 10.8
        assert refused <= 13

    def test_a_fixed_window_is_found_within_a_few(self):
        seconds, refused = run(FixedWindow(100), 1000)
        assert seconds <= 13
        assert refused <= 40

    @pytest.mark.parametrize("begin", [0.5, 1.0, 1.5, 1.9, 30.0])
    def test_a_busy_machine_that_begins_late_finds_the_same(self, begin):
        seconds, refused = run(SlidingWindow(100), 1000, begin=begin)
        assert seconds <= 10.8
        assert refused <= 13

    @pytest.mark.parametrize("limit", [5, 20, 300])
    def test_other_rates_too(self, limit):
        seconds, refused = run(SlidingWindow(limit), limit * 20)
        assert seconds <= 20 * 1.2
        assert refused <= 80

    @pytest.mark.parametrize(
        ("share", "retry_after", "most_seconds"),
        [(0.01, 0.05, 2), (0.03, 1.0, 90), (0.1, 0.05, 40), (0.1, 1.0, 350), (0.3, 0.05, 150)],
    )
    def test_C8_a_busy_endpoint_that_refuses_at_random_is_not_asked_ever_more_slowly(
        self, share, retry_after, most_seconds
    ):
        """Without an end to the cuts, 1,000 rows of which each tenth is refused took 22 minutes and more."""
        seconds, refused = run(Busy(share), 1000, retry_after=retry_after)
        assert seconds < most_seconds
        assert refused < 1500 * share / (1 - share)

    @pytest.mark.parametrize("server", [SlidingWindow, FixedWindow, TokenBucket])
    @pytest.mark.parametrize("retry_after", [0.2, 1.0])
    def test_a_limit_is_kept_to_however_long_it_lets_wait(self, server, retry_after):
        _seconds, refused = run(server(100), 1000, retry_after=retry_after)
        assert refused < 60

    def test_no_refusal_means_no_limit(self):
        seconds, refused = run(SlidingWindow(10**9), 20_000)
        assert seconds <= 1.06 * 20_000 * 0.05 / 64
        assert refused == 0

    def test_C8_an_endpoint_that_refuses_everything_is_asked_seldom(self):
        class Down:
            def accepts(self, now):
                return now >= 1010.0

        seconds, refused = run(Down(), 50)
        assert seconds <= 13
        assert refused <= 50 + 10 * 3


class TestEpisode:
    def test_later_refusals_of_it_refine_the_rate_and_cut_it_only_once(self):
        state = new_state()
        ats = [grant(state, 1000.0 + index / 100) for index in range(50)]
        rates = []
        for at in ats[40:]:
            bucket.refuse(state, KNOWN_NOTHING, granted_at=at, seconds=1.0, now=1000.6)
            rates.append(state[RATE_CEILING])
        assert rates == sorted(rates, reverse=True)
        assert rates[-1] == pytest.approx(0.97 * 40)

    def test_a_straggler_after_the_pause_does_not_pause_again(self):
        state = new_state()
        at = grant(state, 1000.0)
        bucket.refuse(state, KNOWN_NOTHING, granted_at=at, seconds=1.0, now=1000.1)
        until = state[PAUSED_UNTIL]
        bucket.refuse(state, KNOWN_NOTHING, granted_at=at, seconds=1.0, now=1003.0)
        assert state[PAUSED_UNTIL] == until

    def test_a_longer_wait_within_it_counts(self):
        state = new_state()
        at = grant(state, 1000.0)
        bucket.refuse(state, KNOWN_NOTHING, granted_at=at, seconds=1.0, now=1000.1)
        bucket.refuse(state, KNOWN_NOTHING, granted_at=at, seconds=7.0, now=1000.2)
        assert state[PAUSED_UNTIL] == pytest.approx(1007.2)

    def test_a_cut_goes_no_deeper_than_half_of_known_limits(self):
        state, terms = new_state(), Terms(max_requests=600)
        at = bucket.take(state, terms, tokens=0, least=0, horizon=1, since=UNLIMITED, now=1000.0).at
        bucket.refuse(state, terms, granted_at=at, seconds=60.0, now=1000.1)
        assert state[RATE_CEILING] == pytest.approx(600 / 60 * 512 / 515 / 2, rel=0.01)

    def test_a_rate_that_is_confirmed_is_probed_more_seldom(self):
        state = new_state()
        for _ in range(3):
            start = state[PAUSED_UNTIL] or 1000.0
            for index in range(1000):
                at = grant(state, start + index / 100)
            bucket.refuse(state, KNOWN_NOTHING, granted_at=at, seconds=1.0, now=at + 0.01)
        assert state[RATE_CALM] == 240.0

    def test_a_pause_of_more_than_a_day_is_not_believed(self):
        state = new_state()
        bucket.refuse(state, KNOWN_NOTHING, granted_at=1000.0, seconds=1e12, now=1000.0)
        assert state[PAUSED_UNTIL] == 1000.0 + 86_400.0


class TestRateAt:
    def test_a_learned_rate_is_flat_at_first_and_doubles_after_its_calm(self):
        state = new_state()
        ats = [grant(state, 1000.0) for _ in range(11)]
        bucket.refuse(state, KNOWN_NOTHING, granted_at=ats[-1], seconds=1.0, now=1000.0)
        learned = state[RATE_CEILING]
        assert pace.rate_at(state, 1001.0) == learned
        assert pace.rate_at(state, 1001.0 + 10.0) < 1.01 * learned
        assert pace.rate_at(state, 1001.0 + 60.0) == pytest.approx(2 * learned)

    def test_it_does_not_grow_while_nobody_sends(self):
        state = new_state()
        ats = [grant(state, 1000.0) for _ in range(11)]
        bucket.refuse(state, KNOWN_NOTHING, granted_at=ats[-1], seconds=1.0, now=1000.0)
        learned = state[RATE_CEILING]
        grant(state, 9000.0)
        assert pace.rate_at(state, 9000.0) == pytest.approx(learned)
        assert state[CYCLE_GRANTS] == 1

    @settings(max_examples=60)
    @given(steps=st.lists(st.tuples(st.booleans(), st.floats(0, 5)), max_size=60))
    def test_is_always_a_rate_that_something_can_be_sent_at(self, steps):
        state, now, at = new_state(), 1000.0, 1000.0
        for refused, seconds in steps:
            now += seconds
            if refused:
                bucket.refuse(state, KNOWN_NOTHING, granted_at=at, seconds=seconds, now=now)
            else:
                at = grant(state, now) or at
            assert 0.05 <= pace.rate_at(state, now) <= UNLIMITED
