"""The output cap has two names, and endpoints that know one of them."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_llm_provider.clients.openai import OpenAIClient
from airflow_llm_provider.engine.call import CallError, FailureKind
from airflow_llm_provider.jobs import SplitOptions, run_dataset
from airflow_llm_provider.spec import CompletionSpec
from airflow_llm_provider.testing.scripted_server import Rule


def body(text="hi", **more):
    return {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 5, **more}


def ask(server, *bodies):
    """Send bodies one after the other through one client; a failure stands in for its reply."""

    async def main():
        client = OpenAIClient(base_url=server.base_url)
        found = []
        for each in bodies:
            try:
                found.append(await client.complete(each, timeout=20))
            except CallError as error:
                found.append(error)
        await client.aclose()
        return found if len(bodies) > 1 else found[0]

    return asyncio.run(main())


class TestOutputCapName:
    REFUSAL: ClassVar = {
        "error": {
            "message": "Use 'max_completion_tokens'.",
            "code": "unsupported_parameter",
            "param": "max_tokens",
        }
    }

    def test_is_switched_once_and_remembered(self, scripted_server):
        scripted_server.script(Rule(has="max_tokens", status=400, body=self.REFUSAL))
        replies = ask(scripted_server, *(body(str(n)) for n in range(3)))
        assert [reply.text for reply in replies] == ["echo: 0", "echo: 1", "echo: 2"]
        sent = [
            next(key for key in request.body if key.startswith("max")) for request in scripted_server.requests
        ]
        assert sent == ["max_tokens", *["max_completion_tokens"] * 3]
        assert scripted_server.requests[1].body["max_completion_tokens"] == 5

    def test_what_was_sent_again_is_counted_by_limiter_and_state(self, scripted_server, tmp_path):
        scripted_server.script(Rule(has="max_tokens", status=400, body=self.REFUSAL))
        first, second = ask(scripted_server, body("0"), body("1"))
        assert (first.requests, second.requests) == (2, 1)
        pq.write_table(pa.table({"text": [f"row {n}" for n in range(6)]}), tmp_path / "in.parquet")
        scripted_server.script(Rule(has="max_tokens", status=400, body=self.REFUSAL))
        summary = run_dataset(
            CompletionSpec(model="m", prompt="{{ text }}"),
            str(tmp_path / "in.parquet"),
            str(tmp_path / "out"),
            base_url=scripted_server.base_url,
            concurrency=1,
        )
        assert summary.requests == len(scripted_server.requests) == 7

    def test_is_switched_back_to_the_older_name_too(self, scripted_server):
        refusal = {
            "detail": [
                {"type": "extra_forbidden", "loc": ["body", "max_completion_tokens"], "msg": "Extra inputs"}
            ]
        }
        scripted_server.script(Rule(has="max_completion_tokens", status=422, body=refusal))
        newer = {**body(), "max_completion_tokens": 5}
        del newer["max_tokens"]
        assert ask(scripted_server, newer).text == "echo: hi"

    def test_is_switched_by_the_text_where_there_is_no_code(self, scripted_server):
        text = "Unrecognized request argument supplied: max_tokens"
        scripted_server.script(
            Rule(has="max_tokens", status=400, body={"error": {"message": text, "param": None}})
        )
        assert ask(scripted_server, body()).text == "echo: hi"

    def test_C18_both_names_refused_is_a_wrong_setting(self, scripted_server):
        newer = {
            "error": {"code": "unsupported_parameter", "param": "max_completion_tokens", "message": "no"}
        }
        scripted_server.script(
            Rule(has="max_tokens", status=400, body=self.REFUSAL),
            Rule(has="max_completion_tokens", status=400, body=newer),
        )
        first, second = ask(scripted_server, body(), body())
        assert first.kind is second.kind is FailureKind.CONFIGURATION
        assert scripted_server.stats()["requests"] == 3

    def test_C18_a_refused_value_is_no_refused_name(self, scripted_server):
        too_large = {
            "error": {
                "message": "max_tokens is too large: 5.",
                "code": "invalid_value",
                "param": "max_tokens",
            }
        }
        scripted_server.script(Rule(has="max_tokens", status=400, body=too_large))
        assert ask(scripted_server, body()).kind is FailureKind.CONFIGURATION
        assert scripted_server.stats()["requests"] == 1

    def test_requests_that_were_out_when_the_name_changed_are_sent_again(self, scripted_server):
        scripted_server.script(Rule(has="max_tokens", status=400, body=self.REFUSAL, delay=0.2))

        async def main():
            client = OpenAIClient(base_url=scripted_server.base_url)
            replies = await asyncio.gather(*(client.complete(body(str(n)), timeout=20) for n in range(8)))
            await client.aclose()
            return replies

        assert [reply.text for reply in asyncio.run(main())] == [f"echo: {n}" for n in range(8)]

    @pytest.mark.parametrize("concurrency", [1, 16])
    def test_a_whole_dataset_costs_one_request_more(self, scripted_server, tmp_path, concurrency):
        scripted_server.script(Rule(has="max_tokens", status=400, body=self.REFUSAL))
        pq.write_table(pa.table({"text": [f"row {n}" for n in range(60)]}), tmp_path / "in.parquet")
        summary = run_dataset(
            CompletionSpec(model="m", prompt="{{ text }}", max_output_tokens=5),
            str(tmp_path / "in.parquet"),
            str(tmp_path / "out"),
            base_url=scripted_server.base_url,
            concurrency=concurrency,
            split_options=SplitOptions(max_rows_per_shard=20),
        )
        assert summary.shards == 3
        assert summary.succeeded == 60
        assert scripted_server.stats()["by_status"] == {"400": 1, "200": 60}
