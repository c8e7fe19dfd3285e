"""Injected code that raises what it must not raise: contained, told, and not for ever."""

from __future__ import annotations

import pytest

from airflow_llm_provider.engine.call import CallError, FailureKind, Judgement
from airflow_llm_provider.engine.events import BugFound
from airflow_llm_provider.engine.status import RowStatus
from airflow_llm_provider.errors import LLMTerminalError


class BrokenJudge:
    def __init__(self, *bad):
        self.bad = bad

    def __call__(self, reply):
        if reply.text in self.bad or not self.bad:
            raise AttributeError(f"cannot judge {reply.text}")
        return Judgement(status=RowStatus.SUCCESS, answer=reply.text)


class BrokenClient:
    """Breaks on some rows, or on all; leaves the others to the rig's client."""

    def __init__(self, rig, *rows):
        self.rig = rig
        self.rows = rows

    async def complete(self, body, *, timeout):
        if body["row"] in self.rows or not self.rows:
            raise AttributeError("'NoneType' object has no attribute 'choices'")
        return await self.rig.client.complete(body, timeout=timeout)


class TestJudgeBug:
    def test_the_row_keeps_its_words_and_costs_and_the_others_go_on(self, rig):
        rig.build(
            lambda call: "odd-words" if call.body["row"] == 2 else "ok",
            parts={"judge": BrokenJudge("odd-words"), "price": lambda model, usage: 0.5},
        )
        report = rig.run(6)
        assert report.rows_by_status == {"success": 5, "invalid_output": 1}
        odd = next(outcome for outcome in rig.outcomes if outcome.index == 2)
        assert (odd.text, odd.code, odd.cost_usd) == ("odd-words", "judge_bug", 0.5)
        assert "AttributeError at" in odd.message
        assert report.bugs == 1
        (bug,) = rig.observer.of(BugFound)
        assert bug.where == "judge"
        assert isinstance(bug.error, AttributeError)

    def test_a_streak_of_rows_stops_the_run_and_quotes_no_answer(self, rig):
        rig.build(then="secret-words", concurrency=1, parts={"judge": BrokenJudge()})
        with pytest.raises(
            LLMTerminalError, match="bug in the judge: AttributeError at .*test_runner_bugs"
        ) as raised:
            rig.run(100, total=100)
        assert "secret-words" not in str(raised.value)
        assert raised.value.__cause__ is None
        assert [outcome.text for outcome in rig.outcomes] == ["secret-words"] * 5
        assert rig.engine.report.pending == 95

    def test_bugs_among_good_rows_never_stop_the_run(self, rig):
        rig.build(
            lambda call: "odd" if call.body["row"] % 2 else "ok",
            concurrency=1,
            parts={"judge": BrokenJudge("odd")},
        )
        assert rig.run(60).rows_by_status == {"success": 30, "invalid_output": 30}


class TestClientBug:
    def test_C14_it_is_a_bad_response_of_one_row(self, rig):
        rig.build(parts={"client": BrokenClient(rig, 2)})
        report = rig.run(6)
        assert report.rows_by_status == {"success": 5, "error": 1}
        bad = next(outcome for outcome in rig.outcomes if outcome.index == 2)
        assert (bad.code, bad.attempts) == ("client_bug", 5)
        assert bad.message == "The client raised AttributeError"
        assert {bug.where for bug in rig.observer.of(BugFound)} == {"client"}

    def test_a_streak_of_rows_stops_the_run(self, rig):
        rig.build(concurrency=1, retry={"max_attempts": 2}, parts={"client": BrokenClient(rig)})
        with pytest.raises(LLMTerminalError, match="bug in the client"):
            rig.run(1000, total=1000)
        assert rig.engine.report.requests == 10

    def test_a_row_that_failed_for_its_own_reasons_ends_a_streak(self, rig):
        rejected = CallError(FailureKind.ROW, "invalid_request", "HTTP 400")
        rig.build(then=rejected, concurrency=1, parts={"client": BrokenClient(rig, *range(0, 40, 2))})
        assert rig.run(40).rows_by_status == {"error": 20, "rejected": 20}


class TestPriceBug:
    def test_the_answer_is_kept_and_its_price_unknown(self, rig):
        def price(model, usage):
            raise KeyError(model)

        rig.build(parts={"price": price})
        report = rig.run(10)
        assert report.rows_by_status == {"success": 10}
        assert report.cost_usd is None
        assert report.bugs == 10


class TestObserverBug:
    def test_watching_costs_no_answer(self, rig):
        class Broken:
            def on_event(self, event):
                raise RuntimeError("the display is gone")

        rig.build(parts={"observer": Broken()})
        report = rig.run(10)
        assert report.rows_by_status == {"success": 10}
        assert report.bugs == 30
