"""Rows that are all rejected for one reason stop the run; rows that are at fault themselves never do."""

from __future__ import annotations

import asyncio

import pytest

from airflow_llm_provider.engine.call import CallError, FailureKind, Judgement, Request
from airflow_llm_provider.engine.config import EngineConfig
from airflow_llm_provider.engine.runner import Engine
from airflow_llm_provider.engine.status import RowStatus
from airflow_llm_provider.errors import LLMConfigurationError, LLMError, LLMInputError
from airflow_llm_provider.testing.clock import ManualClock
from airflow_llm_provider.testing.scripted_client import ScriptedClient


def row_error(code="http_400", status=RowStatus.REJECTED):
    return CallError(FailureKind.ROW, code, "no", row_status=status, status_code=400)


def run(script, *, rows=500, concurrency=8, **config):
    clock, outcomes = ManualClock(), []
    client = ScriptedClient(script, clock=clock, latency=0.1)
    engine = Engine(
        client,
        lambda reply: Judgement(status=RowStatus.SUCCESS, answer=reply.text),
        config=EngineConfig(concurrency=concurrency, **config),
        clock=clock,
    )
    requests = (
        Request(index=n, body={"messages": []}, prompt_tokens=1, max_output_tokens=1) for n in range(rows)
    )
    try:
        asyncio.run(engine.run(requests, outcomes.append, total=rows))
    except LLMError as error:
        return client, outcomes, error
    return client, outcomes, None


class TestRejectionStreak:
    def test_C18_a_bare_400_for_every_row_stops_the_run_after_a_few(self):
        client, _, error = run(lambda _: row_error())
        assert isinstance(error, LLMConfigurationError)
        assert "first 10 rows the same way (HTTP 400, http_400)" in str(error)
        assert len(client.calls) <= 10 + 8

    @pytest.mark.parametrize(
        "status", [RowStatus.CONTEXT_TOO_LONG, RowStatus.CONTENT_FILTER, RowStatus.REQUEST_TOO_LARGE]
    )
    def test_C16_rows_that_are_too_long_or_filtered_never_stop_it(self, status):
        _, outcomes, error = run(lambda _: row_error(status.value, status), rows=50)
        assert error is None
        assert len(outcomes) == 50

    def test_one_accepted_row_among_the_first_settles_it(self):
        script = [row_error()] * 9 + ["ok"] + [row_error()] * 40
        _, outcomes, error = run(script, rows=50)
        assert error is None
        assert len(outcomes) == 50

    def test_different_codes_settle_it(self):
        script = [row_error(f"code_{n % 2}") for n in range(50)]
        assert run(script, rows=50)[2] is None

    def test_fewer_rows_than_that_are_no_evidence(self):
        assert run(lambda _: row_error(), rows=9)[2] is None

    def test_can_be_switched_off(self):
        assert run(lambda _: row_error(), rows=50, max_same_rejections=None)[2] is None

    def test_wants_a_count(self):
        with pytest.raises(LLMInputError, match="max_same_rejections"):
            EngineConfig(max_same_rejections=0)
