"""The client against a server that somebody else wrote, in the dialects of several providers."""

from __future__ import annotations

import asyncio
import json

import pytest
from llmock.pytest_plugin import LLMock
from llmock.testing import LLMockServer

from airflow_llm_provider import CompletionSpec
from airflow_llm_provider.answers import AnswerJudge
from airflow_llm_provider.clients.openai import OpenAIClient
from airflow_llm_provider.engine.call import CallError, FailureKind
from airflow_llm_provider.engine.status import RowStatus
from airflow_llm_provider.prompt import PromptTemplate, request_body

DIALECTS = ["openai", "mistral", "groq", "together", "xai"]
SPEC = CompletionSpec(
    model="gpt-4o-mini",
    prompt="{{ a }}",
    output_schema={
        "type": "object",
        "properties": {"label": {"type": "string"}, "score": {"type": "integer"}},
    },
)


@pytest.fixture(scope="module")
def running():
    with LLMockServer() as server:
        yield server


@pytest.fixture
def llmock(running):
    mock = LLMock(running)
    yield mock
    mock.reset()


def ask(llmock, dialect="openai", spec=SPEC):
    async def main():
        client = OpenAIClient(base_url=llmock.base_url(dialect), api_key="k")
        try:
            return await client.complete(
                request_body(spec, PromptTemplate(spec).messages({"a": "hi"})), timeout=20
            )
        finally:
            await client.aclose()

    return asyncio.run(main())


class TestIndependentServer:
    def test_its_usage_is_a_quarter_of_the_characters(self, llmock):
        # As docs/counting.md says: there is no vocabulary behind it that a count could be compared with.
        spec = CompletionSpec(model="gpt-4o-mini", prompt="word " * 100 + "{{ a }}", system="Be brief.")
        assert (
            ask(llmock, spec=spec).usage.prompt_tokens
            == len("word " * 100 + "hi") // 4 + len("Be brief.") // 4
        )

    @pytest.mark.parametrize("dialect", DIALECTS)
    def test_a_completion_is_read(self, llmock, dialect):
        reply = ask(llmock, dialect, CompletionSpec(model="gpt-4o-mini", prompt="{{ a }}"))
        assert reply.text
        assert reply.finish_reason in ("stop", "eos")
        assert reply.usage.completion_tokens > 0

    def test_a_structured_answer_is_judged(self, llmock):
        llmock.reply(json.dumps({"label": "x", "score": 1.0}))
        judgement = AnswerJudge(SPEC)(ask(llmock))
        assert (judgement.status, judgement.answer) == (RowStatus.SUCCESS, {"label": "x", "score": 1})

    @pytest.mark.parametrize("dialect", DIALECTS)
    @pytest.mark.parametrize(
        ("status", "kind"),
        [
            (401, FailureKind.AUTHENTICATION),
            (404, FailureKind.CONFIGURATION),
            (429, FailureKind.RATE_LIMITED),
            (500, FailureKind.OVERLOADED),
            (503, FailureKind.OVERLOADED),
        ],
    )
    def test_B9_failures_mean_what_they_mean_in_every_dialect(self, llmock, dialect, status, kind):
        llmock.fail(status, retry_after=1.5 if status == 429 else None)
        with pytest.raises(CallError) as caught:
            ask(llmock, dialect)
        assert caught.value.kind is kind
        if status == 429:
            assert caught.value.retry_after == pytest.approx(1.5, abs=0.6)

    @pytest.mark.parametrize("dialect", DIALECTS)
    def test_C16_an_overlong_prompt_ends_its_row(self, llmock, dialect):
        llmock.context_overflow()
        with pytest.raises(CallError) as caught:
            ask(llmock, dialect)
        assert (caught.value.kind, caught.value.row_status) == (FailureKind.ROW, RowStatus.CONTEXT_TOO_LONG)

    def test_C1_an_empty_account_is_no_rate_limit(self, llmock):
        llmock.fail(429, code="insufficient_quota")
        with pytest.raises(CallError) as caught:
            ask(llmock)
        assert caught.value.kind is FailureKind.QUOTA

    def test_limits_come_along(self, llmock):
        llmock.limits(rpm=1, tpm=100_000)
        assert ask(llmock).rate.limit_requests == 1
        with pytest.raises(CallError) as caught:
            ask(llmock)
        assert caught.value.kind is FailureKind.RATE_LIMITED
        assert 0 < caught.value.retry_after <= 60
