"""Gates: consulted before each attempt, told of each end, able to hold or stop everything."""

from __future__ import annotations

import pytest

from airflow_llm_provider.engine.call import CallError, FailureKind
from airflow_llm_provider.engine.events import Waiting, WaitReason
from airflow_llm_provider.engine.gate import PASS, Passage
from airflow_llm_provider.engine.limiter import Unlimited
from airflow_llm_provider.engine.verdict import Verdict
from airflow_llm_provider.errors import LLMRetryableError, LLMTerminalError
from airflow_llm_provider.testing.scripted_client import Delayed


class CountingGate:
    """Lets everything pass, and checks that every passage is accounted for."""

    def __init__(self):
        self.out = 0
        self.verdicts = []
        self.withdrawn = 0

    def admit(self, request, *, now):
        self.out += 1
        return PASS

    def withdraw(self, request, *, now):
        self.out -= 1
        self.withdrawn += 1

    def settle(self, request, attempt, *, now):
        self.out -= 1
        self.verdicts.append(attempt.verdict)


class FewFailures(CountingGate):
    """The roughest breaker: after five failures in a row, ends the run."""

    def admit(self, request, *, now):
        if self.verdicts[-5:] == [Verdict.DROPPED] * 5:
            return Passage(stop=LLMRetryableError("The endpoint is down", retry_after=30))
        return super().admit(request, now=now)


class ClosedUntil(CountingGate):
    def __init__(self, opens):
        super().__init__()
        self.opens = opens

    def admit(self, request, *, now):
        if now < self.opens:
            return Passage(wait=self.opens - now)
        return super().admit(request, now=now)


class Budget(CountingGate):
    """Counts what is out as spent, as a budget must."""

    def __init__(self, rows):
        super().__init__()
        self.left = rows

    def admit(self, request, *, now):
        if not self.left:
            return Passage(stop=LLMTerminalError("The budget is spent: raise it and run again"))
        self.left -= 1
        return super().admit(request, now=now)


class TestGates:
    def test_every_attempt_passes_and_is_settled(self, rig):
        gate = CountingGate()
        rig.build([CallError(FailureKind.OVERLOADED, "http_503", "x")] * 3, parts={"gates": [gate]})
        rig.run(10)
        assert gate.out == 0
        assert (gate.verdicts.count("dropped"), gate.verdicts.count("success")) == (3, 10)

    def test_C10_a_dead_endpoint_costs_a_handful_of_requests_and_rows_stay_pending(self, rig):
        gate = FewFailures()
        rig.build(
            then=CallError(FailureKind.OVERLOADED, "http_503", "x"), concurrency=8, parts={"gates": [gate]}
        )
        with pytest.raises(LLMRetryableError, match="down") as raised:
            rig.run(500, total=500)
        assert raised.value.retry_after == 30
        assert len(rig.client.calls) <= 5 + 8
        assert rig.outcomes == []
        assert rig.engine.report.pending == 500

    def test_C10_rows_wait_while_a_gate_is_closed_and_no_attempt_is_used(self, rig):
        rig.build(parts={"gates": [ClosedUntil(60)]}, retry={"max_attempts": 1})
        report = rig.run(10)
        assert report.rows_by_status == {"success": 10}
        assert min(call.started for call in rig.client.calls) == 60
        assert {event.reason for event in rig.observer.of(Waiting)} == {WaitReason.GATE}

    def test_capacity_is_given_back_while_a_gate_is_closed(self, rig):
        class Counting(Unlimited):
            taken = 0
            most = 0

            async def reserve(self, cost):
                self.taken += 1
                self.most = max(self.most, self.taken)
                return await super().reserve(cost)

            async def cancel(self, reservation):
                self.taken -= 1

            async def settle(self, reservation, used):
                self.taken -= 1

        limiter = Counting(clock=rig.clock)
        rig.build(parts={"gates": [ClosedUntil(60)], "limiter": limiter}, concurrency=4)
        rig.run(10)
        assert limiter.taken == 0
        assert limiter.most <= 4

    def test_a_later_gate_that_holds_takes_back_the_earlier_passage(self, rig):
        first = CountingGate()
        rig.build(parts={"gates": [first, ClosedUntil(5)]}, concurrency=3)
        rig.run(6)
        assert first.out == 0
        assert first.withdrawn == 3

    def test_I7_a_budget_stops_before_it_is_exceeded_and_paid_answers_are_kept(self, rig):
        gate = Budget(60)
        rig.build(concurrency=8, latency=1, parts={"gates": [gate]})
        with pytest.raises(LLMTerminalError, match="budget"):
            rig.run(100, total=100)
        assert len(rig.client.calls) == 60
        assert len(rig.outcomes) == 60
        assert rig.engine.report.pending == 40
        assert gate.out == 0

    def test_a_request_that_is_given_up_is_settled_as_no_evidence(self, rig):
        gate = CountingGate()
        rig.build(
            lambda call: Delayed(answer="x", seconds=100),
            concurrency=2,
            stop_grace=0,
            parts={"gates": [gate]},
        )

        async def stop():
            await rig.clock.sleep(1)
            rig.engine.stop("SIGTERM")

        rig.run(5, meanwhile=stop)
        assert gate.out == 0
        assert gate.verdicts == [Verdict.IGNORED] * 2

    def test_a_gate_that_breaks_ends_the_run_but_costs_no_answer(self, rig):
        class Broken(CountingGate):
            def settle(self, request, attempt, *, now):
                raise ZeroDivisionError

        rig.build(concurrency=1, parts={"gates": [Broken()]})
        with pytest.raises(ZeroDivisionError):
            rig.run(5)
        assert len(rig.outcomes) == len(rig.client.calls) == 1
