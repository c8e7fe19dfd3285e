"""Identical requests of a shard are asked once and answered alike."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from airflow_llm_provider.engine.call import CallError, FailureKind
from airflow_llm_provider.errors import LLMQuotaError

TEXTS = [f"row {n % 4}" for n in range(20)]


class TestDuplicates:
    def test_are_asked_once_and_every_row_gets_the_answer(self, job):
        job.write(TEXTS, id=list(range(20)))
        summary = job.run()
        assert sorted(job.calls) == ["row 0", "row 1", "row 2", "row 3"]
        assert [row["answer"] for row in job.output()] == [f"answer to {text}" for text in TEXTS]
        assert (summary.rows, summary.succeeded, summary.requests, summary.reused) == (20, 20, 4, 16)

    def test_cost_is_counted_once(self, job):
        job.write(TEXTS)
        summary = job.run()
        assert summary.output_usage.total_tokens == summary.usage.total_tokens == 4 * 15
        assert summary.output_cost_usd == pytest.approx(summary.cost_usd)
        rows = job.output()
        assert [row["llm_attempts"] for row in rows] == [1] * 4 + [0] * 16
        assert rows[-1]["llm_cost_usd"] == 0.0
        assert rows[-1]["llm_prompt_tokens"] is None

    @pytest.mark.parametrize(
        ("temperature", "option", "requests"),
        [(0, None, 4), (0, False, 20), (0.7, None, 20), (0.7, True, 4), (None, None, 20)],
    )
    def test_by_default_only_where_answers_would_be_the_same(self, job, temperature, option, requests):
        job.spec = dataclasses.replace(job.spec, temperature=temperature)
        job.write(TEXTS)
        job.run(complete={"deduplicate": option})
        assert job.requests() == requests

    def test_share_a_failure_too_and_are_asked_again_together(self, job):
        job.write(TEXTS)
        job.answer = lambda call: (
            CallError(FailureKind.ROW, "rejected", "no")
            if call.body["messages"][-1]["content"] == "row 3"
            else "yes"
        )
        assert job.run().rows_by_status == {"success": 15, "rejected": 5}
        assert job.requests() == 4
        job.answer = None
        assert job.run().rows_by_status == {"success": 20}
        assert job.requests() == 1

    def test_run_again_sends_nothing_and_leaves_byte_identical_results(self, job):
        job.write(TEXTS)
        job.run()
        [results] = Path(job.destination, "_llm", "results").iterdir()
        before = results.read_bytes()
        job.requests()
        job.run()
        assert job.requests() == 0
        assert results.read_bytes() == before

    def test_I1_an_answer_that_was_kept_before_a_crash_is_given_to_the_others(self, job):
        job.write(TEXTS)
        [reference] = job.split().references
        job.answer = lambda call: (
            CallError(FailureKind.QUOTA, "insufficient_quota", "no") if len(job.calls) > 2 else "yes"
        )
        with pytest.raises(LLMQuotaError):
            job.shard_run(reference, concurrency=1).run()
        state = job.last_run.state
        assert state.rows_by_status == {"success": 10, "pending": 10}
        assert state.reused == 8
        # As if the process had died right after the first answer was written.
        [journal] = Path(job.destination, "_llm", "journal", reference.shard_id).iterdir()
        journal.write_bytes(journal.read_bytes().split(b"\n")[0] + b"\n")
        job.requests()
        job.answer = None
        state = job.shard_run(reference).run()
        assert job.requests() == 3
        assert (state.reused, state.rows_by_status) == (17, {"success": 20})
