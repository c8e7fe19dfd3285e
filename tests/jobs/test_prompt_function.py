"""A job whose prompts a Python function makes: what is asked, what is asked again, what a bad row does."""

from __future__ import annotations

import dataclasses
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_llm_provider.errors import LLMInputError
from airflow_llm_provider.spec import CompletionSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.jobs.conftest import Job

TEXTS = ["one", "two", "three", "four", "five"]


def asking(job: Job, function: Callable[[dict[str, Any]], Any], **changes: Any) -> Job:
    """The job with a function for a prompt."""
    job.spec = CompletionSpec(model="gpt-4o-mini", prompt=function, temperature=0, **changes)
    return job


class TestAsking:
    def test_asks_what_the_function_says(self, job: Job) -> None:
        job.write(TEXTS, id=list(range(5)))
        asking(job, lambda row: f"{row['id']}: {row['text']}")
        summary = job.run(max_rows_per_shard=2)
        assert (summary.rows, summary.succeeded, summary.shards) == (5, 5, 3)
        assert job.calls == [f"{number}: {text}" for number, text in enumerate(TEXTS)]
        assert [row["text"] for row in job.output()] == TEXTS

    def test_conversations_follow_the_system_message(self, job: Job) -> None:
        job.write(["one"])
        bodies: list[Any] = []
        job.answer = lambda call: bodies.append(call.body["messages"]) or "fine"
        turns = [{"role": "assistant", "content": "Which?"}, {"role": "user", "content": "one"}]
        asking(job, lambda _: turns, system="You sort.").run()
        assert bodies == [[{"role": "system", "content": "You sort."}, *turns]]

    def test_nothing_but_the_columns_of_the_input_and_of_the_answer_is_in_the_output(self, job: Job) -> None:
        job.write(["one"])
        job.run()
        columns = list(job.output()[0])
        asking(job, lambda row: row["text"]).run()
        assert list(job.output()[0]) == columns

    def test_the_function_may_change_its_row(self, job: Job) -> None:
        job.write(["one"])
        asking(job, lambda row: row.pop("text")).run()
        assert job.output()[0]["text"] == "one"


class TestIdentity:
    def test_a_template_and_a_function_that_say_the_same_are_the_same(self, job: Job) -> None:
        job.write(TEXTS)
        job.run()
        assert job.requests() == 5
        assert asking(job, lambda row: row["text"]).run().reused == 5
        assert job.requests() == 0

    def test_I2_another_message_asks_only_its_row(self, job: Job) -> None:
        job.write(TEXTS)
        asking(job, lambda row: row["text"]).run(max_rows_per_shard=2)
        job.requests()
        asking(job, lambda row: row["text"].replace("two", "TWO")).run(max_rows_per_shard=2)
        assert job.calls == ["TWO"]
        assert [row["answer"] for row in job.output()][1] == "answer to TWO"

    def test_what_was_planned_is_sent_whatever_the_function_says_by_then(self, job: Job) -> None:
        job.write(["one"])
        words = {"one": "first"}
        result = asking(job, lambda row: words[row["text"]]).split()
        words["one"] = "second"
        job.shard_run(result.references[0]).run()
        assert job.calls == ["first"]

    def test_A27_a_try_that_was_cut_off_is_gone_on_with(self, job: Job) -> None:
        job.write(TEXTS)
        result = asking(job, lambda row: row["text"]).split()

        def once(call: Any) -> Any:
            if len(job.calls) == 3:
                assert job.last_run is not None
                job.last_run.stop("ended")
            return "fine"

        job.answer = once
        with pytest.raises(Exception, match="every answer so far is kept"):
            job.shard_run(result.references[0], concurrency=1).run()
        job.answer = None
        state = job.shard_run(result.references[0], concurrency=1).run()
        assert job.calls == TEXTS
        assert state.reused == 3

    def test_the_plan_names_no_function(self, job: Job) -> None:
        job.write(["one"])

        def a_secret_name(row: Any) -> str:
            return str(row["text"])

        uri = asking(job, a_secret_name).split().plan_uri
        plan = json.loads(Path(uri.removeprefix("file://")).read_text())
        assert plan["spec"]["prompt"] is None


class TestBadRows:
    def test_E12_one_row_that_the_function_cannot_take_is_a_row_without_an_answer(
        self, job: Job, caplog: pytest.LogCaptureFixture
    ) -> None:
        job.write(["1", "x-confidential", "3"])
        with caplog.at_level(logging.DEBUG):
            summary = asking(job, lambda row: f"number {int(row['text'])}").run()
        assert dict(summary.rows_by_status) == {"success": 2, "rejected": 1}
        row = job.output()[1]
        assert row["llm_status"] == "rejected"
        assert "<lambda>() raised ValueError in line" in row["llm_error"]
        assert "confidential" not in caplog.text + row["llm_error"]

    def test_rows_left_out_on_purpose_are_blank_ones(self, job: Job) -> None:
        job.write(TEXTS)
        summary = asking(job, lambda row: None if row["text"] == "two" else row["text"]).run()
        assert dict(summary.rows_by_status) == {"success": 4, "empty_input": 1}

    def test_E12_a_function_that_takes_no_row_fails_the_split(self, job: Job) -> None:
        job.write(TEXTS)
        with pytest.raises(LLMInputError, match=r"any of the 5 rows, .* raised KeyError in line"):
            asking(job, lambda row: row["no_such_column"]).split()
        assert job.requests() == 0

    def test_C16_a_row_beyond_the_window_is_set_aside(self, job: Job) -> None:
        job.write(["short", "long"])
        asking(
            job,
            lambda row: "word " * (500 if row["text"] == "long" else 1),
            context_window=200,
            max_output_tokens=50,
        )
        assert dict(job.run().rows_by_status) == {"success": 1, "context_too_long": 1}

    def test_a_spec_without_a_prompt_is_refused(self, job: Job) -> None:
        job.write(TEXTS)
        job.spec = dataclasses.replace(job.spec, prompt=None)
        with pytest.raises(LLMInputError, match="prompt is not given"):
            job.split()


class TestTogetherWithOtherOptions:
    def test_the_function_gets_columns_that_the_output_does_not_carry(self, job: Job) -> None:
        job.write(["one", "two"], id=[7, 8])
        asking(job, lambda row: f"{row['id']} {row['text']}").run(columns=["text"])
        assert job.calls == ["7 one", "8 two"]
        assert "id" not in job.output()[0]

    def test_a_condition_and_a_limit_hold(self, job: Job) -> None:
        job.write(TEXTS, id=list(range(5)))
        asking(job, lambda row: row["text"]).run(where="id >= 1", limit=2)
        assert job.calls == ["two", "three"]

    def test_split_by_file_is_refused_before_anything_is_read(self, job: Job) -> None:
        with pytest.raises(LLMInputError, match="the prompt is a function, which the tasks that count"):
            asking(job, lambda row: row["text"]).split(split_by="file")
