from array import array

import pytest

from airflow_llm_provider.engine.call import RateHint
from airflow_llm_provider.engine.limits import bucket, hints
from airflow_llm_provider.engine.limits.bucket import Terms
from airflow_llm_provider.engine.limits.state import (
    LEARNED_REQUESTS,
    LEARNED_TOKENS,
    LENGTH,
    UNLIMITED,
    USED_REQUESTS,
    USED_TOKENS,
    initialise,
)


@pytest.fixture
def state():
    new = array("d", bytes(8 * LENGTH))
    initialise(new, window=60.0, now=1000.0)
    return new


def take(state, *, tokens=100, now=1000.0):
    terms = Terms(max_requests=100, max_tokens=10_000)
    return bucket.take(state, terms, tokens=tokens, least=tokens, horizon=60, since=UNLIMITED, now=now)


class TestPerMinute:
    def test_keeps_limits_a_minute(self):
        hint = RateHint(limit_requests=60, remaining_requests=59, reset_requests=1.0)
        assert hints.per_minute(hint) == hint

    def test_keeps_those_of_a_fixed_window(self):
        hint = RateHint(limit_requests=60, remaining_requests=59, reset_requests=45.0)
        assert hints.per_minute(hint).limit_requests == 60

    @pytest.mark.parametrize(
        ("limit", "remaining", "reset"), [(14_400, 14_370, 179.56), (10_000, 9_999, 8.64), (200, 199, 432.0)]
    )
    def test_drops_requests_a_day_and_keeps_tokens_a_minute(self, limit, remaining, reset):
        hint = RateHint(
            limit_requests=limit,
            remaining_requests=remaining,
            reset_requests=reset,
            limit_tokens=6000,
            remaining_tokens=5000,
        )
        kept = hints.per_minute(hint)
        assert (kept.limit_requests, kept.remaining_requests) == (None, None)
        assert (kept.limit_tokens, kept.remaining_tokens) == (6000, 5000)

    def test_compares_nothing_with_a_shorter_window(self):
        kept = hints.per_minute(RateHint(limit_tokens=6000, remaining_tokens=1), window=2.0)
        assert kept == RateHint(limit_tokens=6000)


class TestObserve:
    def test_remembers_the_limits(self, state):
        hints.observe(state, -1, RateHint(limit_requests=500, limit_tokens=9000))
        assert (state[LEARNED_REQUESTS], state[LEARNED_TOKENS]) == (500, 9000)
        hints.observe(state, -1, RateHint(limit_requests=700))
        assert (state[LEARNED_REQUESTS], state[LEARNED_TOKENS]) == (700, 9000)

    def test_charges_what_others_took(self, state):
        slot = take(state).slot
        hints.observe(state, slot, RateHint(limit_tokens=10_000, remaining_tokens=3000))
        assert state[USED_TOKENS] == 7000

    def test_never_gives_more(self, state):
        slot = take(state).slot
        hints.observe(state, slot, RateHint(limit_requests=100, remaining_requests=100))
        assert state[USED_REQUESTS] == 1

    def test_lets_small_differences_be(self, state):
        slot = take(state).slot
        hints.observe(state, slot, RateHint(limit_tokens=10_000, remaining_tokens=9_820))
        assert state[USED_TOKENS] == 100

    def test_charges_a_difference_once_whatever_the_order_of_answers(self, state):
        slots = [take(state, now=1000.0 + index).slot for index in range(4)]
        for slot, left in ((slots[2], 2700), (slots[0], 2900), (slots[1], 2800), (slots[2], 2700)):
            hints.observe(state, slot, RateHint(limit_tokens=10_000, remaining_tokens=left))
        assert state[USED_TOKENS] == 10_000 - 2700 + 100

    def test_an_old_answer_is_compared_with_what_had_been_used_then(self, state):
        early = take(state, tokens=5000).slot
        late = take(state, tokens=1000, now=1050.0)
        take(state, tokens=100, now=1062.0)
        hints.observe(state, late.slot, RateHint(limit_tokens=10_000, remaining_tokens=4000))
        assert state[USED_TOKENS] == 1100
        assert early < late.slot

    def test_negative_remainders_are_none_left(self, state):
        slot = take(state).slot
        hints.observe(state, slot, RateHint(limit_requests=100, remaining_requests=-3))
        assert state[USED_REQUESTS] == 100
