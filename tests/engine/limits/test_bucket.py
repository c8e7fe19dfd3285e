"""The bucket in virtual time: never above the limit in any window, and close to it under load."""

from array import array
from bisect import bisect_left
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llm_provider.engine.limits import bucket, pace
from airflow_llm_provider.engine.limits.bucket import Grant, Halted, Later, Terms, TooLarge
from airflow_llm_provider.engine.limits.state import (
    LENGTH,
    UNLIMITED,
    USED_REQUESTS,
    USED_TOKENS,
    initialise,
    is_sound,
)

EVER = UNLIMITED


def new_state(window=60.0, now=1000.0):
    state = array("d", bytes(8 * LENGTH))
    initialise(state, window=window, now=now)
    return state


def take(state, terms, *, tokens=0, least=None, now=1000.0, horizon=EVER, since=EVER):
    return bucket.take(
        state,
        terms,
        tokens=tokens,
        least=tokens if least is None else least,
        horizon=horizon,
        since=since,
        now=now,
    )


def most_in_a_window(amounts, window):
    """Return the largest sum of amounts over half-open windows; the worst ones begin with a grant."""
    amounts = sorted(amounts)
    times = [at for at, _ in amounts]
    sums = [0, *accumulate(amount for _, amount in amounts)]
    return max(
        (sums[bisect_left(times, at + window)] - sums[index] for index, at in enumerate(times)), default=0
    )


def least_in_a_window(amounts, window, start, end):
    amounts = sorted(amounts)
    times = [at for at, _ in amounts]
    sums = [0, *accumulate(amount for _, amount in amounts)]
    starts = [start, *(at + 1e-9 for at in times if start <= at <= end - window)]
    return min(sums[bisect_left(times, begin + window)] - sums[bisect_left(times, begin)] for begin in starts)


class Run:
    """Sends as much as one sender can, in virtual time, and remembers what went out when."""

    def __init__(self, terms, *, now=1000.0):
        self.state = new_state(terms.window, now)
        self.terms = terms
        self.now = now
        self.sent = []

    def until(self, end, *, tokens=lambda _: 100):
        while True:
            answer = take(self.state, self.terms, tokens=tokens(len(self.sent)), now=self.now, horizon=0.25)
            if isinstance(answer, Later):
                self.now = max(answer.at, self.now + 0.01)
            else:
                self.sent.append((answer.at, answer.tokens))
                self.now = max(self.now, answer.at)
            if self.now >= end:
                return self


class TestTake:
    def test_grants_at_once_while_nothing_is_owed(self):
        assert take(new_state(), Terms(max_requests=60)) == Grant(1000.0, 8533, 0, 1000.0)

    def test_waits_for_the_debt_of_the_request_before(self):
        state, terms = new_state(), Terms(max_requests=60)
        take(state, terms)
        second = take(state, terms)
        assert second.at == pytest.approx(1000 + 0.4 * 60 / 60 * 515 / 512, abs=0.01)

    def test_lets_a_burst_go_at_once_when_asked_to(self):
        state, terms = new_state(), Terms(max_requests=60, max_tokens=60_000, burst=10)
        ats = [take(state, terms, tokens=500).at for _ in range(11)]
        assert ats[:10] == [1000.0] * 10
        assert ats[10] > 1000.9

    def test_holds_the_limit_whatever_the_burst(self):
        run = Run(Terms(max_requests=60, burst=60)).until(1200)
        assert most_in_a_window([(at, 1) for at, _ in run.sent], 60) == 60

    def test_C6_refuses_a_request_larger_than_the_limit_and_takes_nothing(self):
        state, terms = new_state(), Terms(max_requests=60, max_tokens=500)
        assert take(state, terms, tokens=800) == TooLarge(500)
        assert (state[USED_REQUESTS], state[USED_TOKENS]) == (0, 0)

    def test_reserves_no_more_than_the_limit_for_an_answer_that_will_hardly_be_that_long(self):
        assert take(new_state(), Terms(max_tokens=500), tokens=4000, least=100).tokens == 500

    def test_takes_nothing_beyond_the_horizon(self):
        state, terms = new_state(), Terms(max_requests=1)
        take(state, terms)
        assert isinstance(take(state, terms, horizon=0.25), Later)
        assert state[USED_REQUESTS] == 1

    def test_finds_the_first_fit_within_the_horizon(self):
        state, terms = new_state(), Terms(max_requests=1, window=2.0)
        take(state, terms, now=1000.0)
        answer = take(state, terms, now=1002.0, horizon=0.1)
        assert 1002.0 <= answer.at <= 1002.1

    def test_serves_in_the_order_of_asking(self):
        state, terms = new_state(), Terms(max_tokens=1000)
        ats = [take(state, terms, tokens=tokens).at for tokens in (900, 900, 1)]
        assert ats == sorted(ats)
        assert ats[1] >= 1060

    def test_stops_when_halted_after_the_sender_began(self):
        state = new_state()
        bucket.halt(state, 2, 1005.0)
        assert take(state, Terms(), since=1000.0, now=1006.0) == Halted(2, 1005.0)
        assert isinstance(take(state, Terms(), since=1006.0, now=1006.0), Grant)


class TestFullLoad:
    @pytest.mark.parametrize(
        ("requests", "tokens", "each"),
        [(600, UNLIMITED, 0), (UNLIMITED, 60_000, 100), (600, 60_000, 100), (6000, 1_000_000, 150)],
    )
    def test_A16_uses_98_to_100_percent_of_the_limit_in_every_window(self, requests, tokens, each):
        run = Run(Terms(max_requests=requests, max_tokens=tokens)).until(1250, tokens=lambda _: each)
        for limit, amounts in ((requests, [(at, 1) for at, _ in run.sent]), (tokens, run.sent)):
            if limit == UNLIMITED or (limit == tokens and tokens / each > requests):
                continue
            assert most_in_a_window(amounts, 60) <= limit
            assert least_in_a_window(amounts, 60, 1060, 1250) >= 0.98 * limit

    def test_A16_sixty_requests_in_any_sixty_seconds(self):
        run = Run(Terms(max_requests=60)).until(1400)
        amounts = [(at, 1) for at, _ in run.sent]
        assert most_in_a_window(amounts, 60) == 60
        assert least_in_a_window(amounts, 60, 1060, 1400) >= 58

    def test_C4_requests_that_are_large_against_the_limit_fill_it_all_the_same(self):
        run = Run(Terms(max_tokens=1000)).until(1400)
        assert most_in_a_window(run.sent, 60) == 1000
        assert least_in_a_window(run.sent, 60, 1060, 1400) >= 900

    def test_keeps_windows_apart_by_more_than_requests_differ_in_travel(self):
        run = Run(Terms(max_requests=60)).until(1400)
        late = [(at + (0.2 if index % 7 == 0 else 0.0), 1) for index, (at, _) in enumerate(run.sent)]
        assert most_in_a_window(late, 60) <= 60


class TestDelay:
    def test_a_late_request_counts_when_it_goes_out(self):
        state, terms = new_state(), Terms(max_requests=1)
        grant = take(state, terms)
        late = bucket.delay(state, grant, window=60.0, now=1005.0)
        assert (late.at, state[USED_REQUESTS]) == (1005.0, 1)
        assert take(state, terms, now=1061.0).at >= 1065.0

    def test_one_that_is_hardly_late_stays_where_it_is(self):
        state = new_state()
        grant = take(state, Terms(max_requests=1))
        assert bucket.delay(state, grant, window=60.0, now=1000.01) is grant


class TestRefuse:
    def test_refusals_in_a_row_do_not_multiply_where_limits_are_known(self):
        """Requests that arrive a little closer together than they were sent are refused with a wait of nothing."""
        run = Run(Terms(max_requests=600)).until(1120)
        for _ in range(6):
            bucket.refuse(run.state, run.terms, granted_at=run.now, seconds=0.02, now=run.now)
            run.until(run.now + 0.2)
        assert pace.rate_at(run.state, run.now) >= 0.8 * 10

    def test_others_on_the_account_are_given_way_to(self):
        run = Run(Terms(max_requests=600)).until(1030)
        for _ in range(8):
            bucket.refuse(run.state, run.terms, granted_at=run.now, seconds=5.0, now=run.now)
            run.until(run.now + 6)
        assert pace.rate_at(run.state, run.now) <= 0.6 * 10


class TestSettle:
    def test_gives_back_to_the_windows_that_hold_the_request(self):
        state, terms = new_state(), Terms(max_tokens=1000)
        grant = take(state, terms, tokens=1000)
        bucket.settle(state, grant.slot, 0, -900)
        assert take(state, terms, tokens=900, now=1001.0).at < 1006
        assert take(state, terms, tokens=100, now=1007.0).at >= 1060

    def test_gives_nothing_to_windows_that_do_not_hold_the_request(self):
        state, terms = new_state(), Terms(max_tokens=1000)
        first = take(state, terms, tokens=500)
        second = take(state, terms, tokens=500, now=1035.0)
        bucket.settle(state, first.slot, 0, -400)
        third = take(state, terms, tokens=400, now=1040.0)
        assert third.at < 1070
        assert take(state, terms, tokens=200, now=1072.0).at >= second.at + 60

    def test_is_too_late_for_windows_long_gone(self):
        state, terms = new_state(), Terms(max_tokens=1000)
        first = take(state, terms, tokens=1000)
        take(state, terms, tokens=1000, now=1061.0)
        bucket.settle(state, first.slot, 0, -900)
        assert state[USED_TOKENS] == 1000

    def test_charges_an_answer_longer_than_expected(self):
        state, terms = new_state(), Terms(max_tokens=1000)
        grant = take(state, terms, tokens=100)
        bucket.settle(state, grant.slot, 0, 900)
        assert take(state, terms, tokens=100, now=1001.0).at >= 1060

    def test_never_lends_capacity_by_correcting_twice(self):
        state, terms = new_state(), Terms(max_tokens=1000)
        grant = take(state, terms, tokens=100)
        for _ in range(3):
            bucket.settle(state, grant.slot, 0, -100)
        assert state[USED_TOKENS] == 0

    def test_undoes_a_grant_that_never_went_out(self):
        state, terms = new_state(), Terms(max_requests=1)
        grant = take(state, terms)
        bucket.give_back(state, grant.slot, grant.tokens, grant.made)
        assert take(state, terms, now=1000.5).at == 1000.5


class TestProperties:
    @settings(max_examples=120)
    @given(data=st.data())
    def test_no_window_ever_exceeds_a_limit(self, data):
        """Random costs, refunds, senders that die or give back, pauses, waits ahead of time, quiet times."""
        draw = data.draw
        window = draw(st.sampled_from([60.0, 2.0, 7.3]))
        max_requests, max_tokens = draw(st.integers(1, 40)), draw(st.integers(50, 2000))
        burst = draw(st.sampled_from([0, 0, 3, 40]))
        terms = Terms(window=window, max_requests=max_requests, max_tokens=max_tokens, burst=burst)
        now = draw(st.floats(0, 1e6))
        state = new_state(window, now)
        sent, open_grants = [], []
        steps = draw(
            st.lists(
                st.tuples(
                    st.sampled_from(
                        [
                            "take",
                            "take",
                            "take",
                            "settle",
                            "settle",
                            "give_back",
                            "die",
                            "wait",
                            "wait",
                            "refuse",
                        ]
                    ),
                    st.floats(0, 1),
                ),
                min_size=60,
                max_size=160,
            )
        )
        for step, share in steps:
            if step == "take":
                tokens = int(share * max_tokens)
                answer = take(
                    state, terms, tokens=tokens, now=now, horizon=EVER if share > 0.9 else window / 200
                )
                if isinstance(answer, Grant):
                    assert answer.at >= now
                    sent.append([answer.at, tokens])
                    open_grants.append((answer, sent[-1]))
                else:
                    now = max(now, answer.at) if share > 0.5 else now
            elif step == "wait":
                now += share**3 * 3 * window
            elif step == "refuse":
                bucket.refuse(state, terms, granted_at=now - share, seconds=share * window / 4, now=now)
            elif open_grants:
                grant, entry = open_grants.pop(int(share * (len(open_grants) - 1)))
                if step == "settle":
                    now = max(now, grant.at)
                    used = int(share * entry[1])
                    bucket.settle(state, grant.slot, 0, used - entry[1])
                    entry[1] = used
                elif step == "give_back" and grant.at > now:
                    bucket.give_back(state, grant.slot, grant.tokens, grant.made)
                    sent.remove(entry)
            assert is_sound(state, window=window, now=now)
        assert most_in_a_window([(at, 1) for at, _ in sent], window) <= max_requests
        assert most_in_a_window([(at, tokens) for at, tokens in sent], window) <= max_tokens

    @settings(max_examples=20)
    @given(
        tokens=st.lists(st.integers(50, 600), min_size=5, max_size=40),
        max_tokens=st.integers(30_000, 90_000),
    )
    def test_small_requests_of_any_mixture_use_the_limit(self, tokens, max_tokens):
        run = Run(Terms(max_tokens=max_tokens)).until(1200, tokens=lambda index: tokens[index % len(tokens)])
        assert most_in_a_window(run.sent, 60) <= max_tokens
        assert least_in_a_window(run.sent, 60, 1060, 1200) >= 0.98 * max_tokens - 1200
