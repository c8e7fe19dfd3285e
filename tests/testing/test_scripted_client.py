"""The scripted client behaves as a real one, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from airflow_llm_provider.engine.call import CallError, FailureKind, Reply
from airflow_llm_provider.testing.clock import ManualClock
from airflow_llm_provider.testing.scripted_client import Delayed, ScriptedClient, reply


@pytest.fixture
def clock():
    return ManualClock()


def ask(client, *bodies, timeout=10):
    async def main():
        return await asyncio.gather(
            *(client.complete(body, timeout=timeout) for body in bodies), return_exceptions=True
        )

    return asyncio.run(main())


class TestScriptedClient:
    def test_it_answers_in_order_and_then_always_the_same(self, clock):
        client = ScriptedClient(["a", "b"], then="c", clock=clock)
        assert [answer.text for answer in ask(client, {}, {}, {}, {})] == ["a", "b", "c", "c"]

    def test_a_function_sees_the_call(self, clock):
        client = ScriptedClient(lambda call: f"{call.body['x']} {call.nth} {call.number}", clock=clock)
        assert [answer.text for answer in ask(client, {"x": 1}, {"x": 1}, {"x": 2})] == [
            "1 1 0",
            "1 2 1",
            "2 1 2",
        ]

    def test_a_reply_is_returned_as_it_is_and_an_error_raised(self, clock):
        given = Reply(text=None, refusal="no")
        error = CallError(FailureKind.QUOTA, "q", "No.")
        assert ask(ScriptedClient([given, error], clock=clock), {}, {}) == [given, error]

    def test_a_string_becomes_a_completion_with_usage(self, clock):
        (answer,) = ask(ScriptedClient(clock=clock), {})
        assert (answer.text, answer.finish_reason, answer.usage.total_tokens) == ("ok", "stop", 15)

    def test_latency_passes_on_the_clock(self, clock):
        client = ScriptedClient([Delayed(answer="slow", seconds=9)], latency=2, clock=clock)
        ask(client, {}, {})
        assert [(call.started, call.ended) for call in client.calls] == [(0, 9), (0, 2)]

    @pytest.mark.parametrize("seconds", [10.5, float("inf")])
    def test_C13_an_answer_later_than_the_timeout_is_a_timeout(self, clock, seconds):
        client = ScriptedClient([Delayed(answer="late", seconds=seconds)], clock=clock)
        (error,) = ask(client, {}, timeout=10)
        assert (error.kind, error.code) == (FailureKind.TIMEOUT, "timeout")
        assert clock.monotonic() == 10

    def test_it_counts_what_is_in_flight_and_what_was_cancelled(self, clock):
        client = ScriptedClient(latency=5, clock=clock)

        async def main():
            tasks = [asyncio.create_task(client.complete({}, timeout=10)) for _ in range(3)]
            await clock.sleep(1)
            assert client.in_flight == 3
            tasks[0].cancel()
            await asyncio.wait(tasks)

        asyncio.run(main())
        assert (client.in_flight, client.max_in_flight) == (0, 3)
        assert [call.cancelled for call in client.calls] == [True, False, False]
        assert client.calls[0].ended == 1

    def test_it_says_whether_it_was_closed(self, clock):
        client = ScriptedClient(clock=clock)
        assert not client.closed
        asyncio.run(client.aclose())
        assert client.closed


class TestReply:
    def test_its_parts_can_be_chosen(self):
        answer = reply("x", prompt_tokens=1, finish_reason="length", request_id="r")
        assert (answer.usage.prompt_tokens, answer.finish_reason, answer.request_id) == (1, "length", "r")
