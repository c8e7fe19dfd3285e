import math

import pytest

from airflow_llm_provider.engine.adaptive import AdaptiveConcurrency, AdaptiveConfig, AdaptiveGate
from airflow_llm_provider.engine.call import Request
from airflow_llm_provider.engine.events import AttemptFinished
from airflow_llm_provider.engine.gate import PASS
from airflow_llm_provider.engine.verdict import Verdict
from airflow_llm_provider.errors import LLMInputError

SUCCESS, IGNORED, DROPPED = Verdict.SUCCESS, Verdict.IGNORED, Verdict.DROPPED


def saturated(ceiling=20, **config):
    concurrency = AdaptiveConcurrency(AdaptiveConfig(ceiling=ceiling, **config))
    while concurrency.admit():
        pass
    return concurrency


def succeed(concurrency, times, *, now, retried=False):
    """Let requests succeed, each followed by another, so that it stays saturated."""
    for _ in range(times):
        concurrency.record(SUCCESS, busy=20, sent_at=now - 0.1, now=now, retried=retried)
        while concurrency.admit():
            pass


class TestLimit:
    def test_begins_at_the_ceiling_and_never_exceeds_it(self):
        concurrency = saturated(20)
        assert concurrency.in_flight == 20
        succeed(concurrency, 1000, now=1.0)
        assert concurrency.limit == 20

    def test_one_episode_is_one_cut(self):
        concurrency = saturated(20)
        for index in range(15):
            concurrency.record(DROPPED, busy=20, sent_at=0.0, now=1.0 + index / 100)
        assert concurrency.limit == 16

    def test_a_request_sent_after_the_cut_begins_another_episode(self):
        concurrency = saturated(20)
        concurrency.record(DROPPED, busy=20, sent_at=0.0, now=1.0)
        concurrency.record(DROPPED, busy=20, sent_at=1.1, now=2.0)
        assert concurrency.limit == pytest.approx(12.8)

    def test_a_drop_of_a_lonely_probe_cuts_nothing(self):
        concurrency = AdaptiveConcurrency(AdaptiveConfig(ceiling=20))
        busy = concurrency.admit()
        concurrency.record(DROPPED, busy=busy, sent_at=0.0, now=1.0)
        assert concurrency.limit == 20

    def test_a_drop_of_a_lonely_probe_undoes_the_cuts_of_its_outage(self):
        concurrency = saturated(20)
        concurrency.record(DROPPED, busy=20, sent_at=0.0, now=1.0)
        concurrency.record(DROPPED, busy=20, sent_at=1.1, now=2.0)
        for _ in range(18):
            concurrency.record(DROPPED, busy=20, sent_at=0.0, now=2.1)
        busy = concurrency.admit()
        concurrency.record(DROPPED, busy=busy, sent_at=3.0, now=3.1)
        assert concurrency.limit == 20

    def test_a_cut_stays_once_a_request_after_it_has_succeeded(self):
        concurrency = saturated(20)
        for _ in range(20):
            concurrency.record(DROPPED, busy=20, sent_at=0.0, now=1.0)
        for verdict in (SUCCESS, DROPPED):
            concurrency.record(verdict, busy=concurrency.admit(), sent_at=2.0, now=2.1)
        assert concurrency.limit == 16

    def test_a_drop_while_many_others_are_in_flight_undoes_no_cut(self):
        concurrency = saturated(20)
        concurrency.record(DROPPED, busy=20, sent_at=0.0, now=1.0)
        concurrency.record(DROPPED, busy=1, sent_at=1.1, now=2.0)
        assert concurrency.limit == 16

    def test_never_falls_below_the_floor(self):
        concurrency = saturated(20, floor=3)
        for index in range(100):
            concurrency.record(DROPPED, busy=20, sent_at=index + 0.5, now=index + 1.0)
            while concurrency.admit():
                pass
        assert concurrency.limit == 3

    def test_grows_by_its_share_once_a_limits_worth_has_succeeded(self):
        concurrency = saturated(20)
        concurrency.record(DROPPED, busy=20, sent_at=0.0, now=1.0)
        while concurrency.admit():
            pass
        for _ in range(4):  # until the rest of the old limit is back
            concurrency.record(IGNORED, busy=20, sent_at=0.0, now=1.5)
        while concurrency.admit():
            pass
        succeed(concurrency, 15, now=3.0)
        assert concurrency.limit == 16
        succeed(concurrency, 1, now=3.0)
        assert concurrency.limit == 18

    @pytest.mark.parametrize("why", ["cooldown", "retried", "not saturated", "ignored"])
    def test_does_not_grow_without_good_reason(self, why):
        concurrency = saturated(20)
        concurrency.record(DROPPED, busy=20, sent_at=0.0, now=1.0)
        if why == "cooldown":
            succeed(concurrency, 100, now=1.9)
        elif why == "retried":
            succeed(concurrency, 100, now=9.0, retried=True)
        elif why == "ignored":
            for _ in range(100):
                concurrency.record(IGNORED, busy=20, sent_at=8.0, now=9.0)
                concurrency.admit()
        else:
            for _ in range(100):
                concurrency.record(SUCCESS, busy=12, sent_at=8.0, now=9.0)
                concurrency.admit()
        assert concurrency.limit == 16

    def test_finds_what_a_server_takes_and_stays_near(self):
        """A server that drops whatever is beyond 10 in flight."""
        concurrency, now, limits = AdaptiveConcurrency(AdaptiveConfig(ceiling=40, cooldown=0.5)), 0.0, []
        for _ in range(400):
            sent = []
            while busy := concurrency.admit():
                sent.append(busy)
            now += 0.1
            for busy in sent:
                verdict = SUCCESS if busy <= 10 else DROPPED
                concurrency.record(verdict, busy=busy, sent_at=now - 0.1, now=now)
            limits.append(concurrency.limit)
        assert 7 <= sum(limits[100:]) / 300 <= 13


class TestGate:
    def request(self, index):
        return Request(index=index, body={}, prompt_tokens=1, max_output_tokens=1)

    def test_holds_back_what_is_beyond_the_limit_until_a_place_is_free(self):
        gate = AdaptiveGate(AdaptiveConfig(ceiling=2))
        assert [gate.admit(self.request(index), now=0.0) == PASS for index in range(3)] == [True, True, False]
        assert 0 < gate.admit(self.request(3), now=0.0).wait <= 0.5
        gate.withdraw(self.request(0), now=0.1)
        assert gate.admit(self.request(3), now=0.1) == PASS

    def test_hears_how_requests_end(self):
        gate = AdaptiveGate(AdaptiveConfig(ceiling=2))
        for index in range(2):
            gate.admit(self.request(index), now=0.0)
        gate.settle(
            self.request(0), AttemptFinished(index=0, attempt=1, verdict=DROPPED, latency=1.0), now=1.0
        )
        assert gate.concurrency.limit == 1.6
        assert gate.concurrency.in_flight == 1


class TestConfig:
    @pytest.mark.parametrize(
        "fields",
        [
            {"ceiling": 0},
            {"floor": 0},
            {"floor": 9},
            {"cut": 1},
            {"growth": 0},
            {"saturation": True},
            {"cooldown": -1},
            {"cooldown": math.nan},
        ],
    )
    def test_refuses_what_makes_no_sense(self, fields):
        with pytest.raises(LLMInputError, match=f"AdaptiveConfig.{next(iter(fields))} is"):
            AdaptiveConfig(**{"ceiling": 8, **fields})
