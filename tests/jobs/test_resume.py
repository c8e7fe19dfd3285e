"""No answer is paid for twice."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from airflow_llm_provider.engine.call import CallError, FailureKind
from airflow_llm_provider.errors import LLMRetryableError, LLMStateError

TEXTS = [f"row {n}" for n in range(20)]


class TestFinishedRun:
    def test_run_again_sends_nothing_and_writes_the_same(self, job):
        job.write(TEXTS)
        first = job.run(max_rows_per_shard=6)
        assert job.requests() == 20
        before = job.output()
        again = job.run(max_rows_per_shard=6)
        assert job.requests() == 0
        assert job.output() == before
        assert (again.plan_id, again.reused, again.requests) == (first.plan_id, 20, 0)
        assert again.output_usage == first.usage

    def test_A6_a_shard_that_runs_again_leaves_byte_identical_results(self, job):
        job.write(TEXTS)
        job.run(max_rows_per_shard=6)
        results = sorted(Path(job.destination, "_llm", "results").iterdir())
        before = [path.read_bytes() for path in results]
        job.run(max_rows_per_shard=6)
        assert [path.read_bytes() for path in results] == before

    def test_a_prepended_row_costs_one_request(self, job):
        job.write(TEXTS)
        job.run(max_rows_per_shard=6)
        job.requests()
        job.write(["new", *TEXTS])
        summary = job.run(max_rows_per_shard=6)
        assert job.calls == ["new"]
        assert summary.reused == 20
        assert [row["answer"] for row in job.output()][:2] == ["answer to new", "answer to row 0"]

    def test_a_changed_column_that_the_prompt_does_not_use_costs_nothing(self, job):
        job.write(TEXTS, stamp=list(range(20)))
        job.run()
        job.requests()
        job.write(TEXTS, stamp=list(range(100, 120)))
        job.run()
        assert job.requests() == 0
        assert [row["stamp"] for row in job.output()] == list(range(100, 120))

    def test_another_shard_size_costs_nothing(self, job):
        job.write(TEXTS)
        job.run(max_rows_per_shard=6)
        job.requests()
        job.run(max_rows_per_shard=7)
        assert job.requests() == 0
        assert len(job.states) == 3

    def test_start_over_pays_again(self, job):
        job.write(TEXTS)
        job.run()
        job.requests()
        job.run(start_over=True)
        assert job.requests() == 20

    @pytest.mark.parametrize(
        ("change", "requests"),
        [
            ({"temperature": 0.5}, 20),
            ({"model": "gpt-4o"}, 20),
            ({"max_output_tokens": 7}, 20),
            ({"system": "Be brief."}, 20),
            ({"request_params": {"seed": 1}}, 20),
            ({"output_column": "label"}, 0),
            ({"encoding": "cl100k_base"}, 0),
            ({"context_window": 100_000}, 0),
        ],
    )
    def test_I2_what_is_asked_decides_what_is_asked_again(self, job, change, requests):
        job.write(TEXTS)
        job.run()
        job.requests()
        job.spec = dataclasses.replace(job.spec, **change)
        job.run()
        assert job.requests() == requests

    def test_I2_how_it_is_asked_asks_nothing_again(self, job):
        job.write(TEXTS)
        job.run()
        job.requests()
        job.run(complete={"concurrency": 1, "timeout": 5.0, "max_attempts": 1, "progress_interval": 1.0})
        assert job.requests() == 0


class TestInterruptedShard:
    def test_I1_the_next_try_asks_only_the_rest(self, job):
        job.write(TEXTS)
        [reference] = job.split().references

        def stop_at_ten(call):
            if len(job.calls) == 10:
                job.last_run.stop("the worker is going down")
            return "yes"

        job.answer = stop_at_ten
        with pytest.raises(LLMRetryableError, match="of 20 rows not asked"):
            job.shard_run(reference).run()
        state = job.last_run.state
        assert state.status == "interrupted"
        assert sum(state.rows_by_status.values()) == 20
        answered = state.rows_by_status["success"]
        assert state.rows_by_status["pending"] == 20 - answered
        sent = job.requests()
        job.answer = None
        state = job.shard_run(reference).run()
        assert state.reused == answered
        assert sent + job.requests() <= 20 + 4

    def test_stopped_before_the_first_request_sends_none(self, job):
        job.write(TEXTS)
        [reference] = job.split().references
        run = job.shard_run(reference)
        run.stop("cleared")
        with pytest.raises(LLMRetryableError):
            run.run()
        assert job.requests() == 0

    def test_I4_a_torn_journal_costs_only_the_torn_row(self, job):
        job.write(TEXTS)
        [reference] = job.split().references
        job.answer = lambda call: _quota() if len(job.calls) > 10 else "yes"
        with pytest.raises(Exception, match="quota|credit"):
            job.shard_run(reference).run()
        answered = job.last_run.state.rows_by_status["success"]
        [journal] = Path(job.destination, "_llm", "journal", reference.shard_id).iterdir()
        journal.write_bytes(journal.read_bytes()[:-10])
        job.requests()
        job.answer = None
        state = job.shard_run(reference).run()
        assert state.reused == answered - 1
        assert job.requests() == 20 - answered + 1

    def test_G14_a_torn_results_file_is_made_anew(self, job):
        job.write(TEXTS)
        first = job.run(max_rows_per_shard=6)
        job.requests()
        results = Path(job.destination, "_llm", "results", f"{job.states[1].shard.shard_id}.parquet")
        results.write_bytes(results.read_bytes()[:-40])
        again = job.run(max_rows_per_shard=6)
        assert job.requests() == 6
        assert again.rows_by_status == first.rows_by_status

    def test_unreadable_state_is_not_taken_for_absent(self, job):
        job.write(TEXTS)
        job.run()
        job.requests()
        results = Path(job.destination, "_llm", "results", f"{job.states[0].shard.shard_id}.parquet")
        results.unlink()
        results.mkdir()
        with pytest.raises(LLMStateError):
            job.run()
        assert job.requests() == 0


class TestRowsWithoutAnAnswer:
    def test_B4_only_failed_rows_are_asked_again(self, job):
        job.write(TEXTS)
        job.answer = lambda call: (
            CallError(FailureKind.OVERLOADED, "http_503", "busy") if _is(call, 3, 7) else "yes"
        )
        summary = job.run(complete={"max_attempts": 2})
        assert summary.rows_by_status == {"success": 18, "error": 2}
        assert job.requests() == 22
        assert summary.retries == 2
        job.answer = None
        healed = job.run()
        assert sorted(job.calls) == ["row 3", "row 7"]
        assert healed.rows_by_status == {"success": 20}
        assert healed.rejects is None

    def test_paid_rows_without_an_answer_are_not_asked_again(self, job):
        from airflow_llm_provider.testing.scripted_client import reply

        job.write(TEXTS)
        job.answer = lambda call: (
            reply("half", finish_reason="length") if _is(call, 3) else reply("") if _is(call, 4) else "yes"
        )
        first = job.run()
        assert first.rows_by_status == {"success": 18, "truncated": 1, "empty": 1}
        job.requests()
        assert job.run().rows_by_status == first.rows_by_status
        assert job.requests() == 0


def _is(call, *numbers):
    return call.body["messages"][-1]["content"] in {f"row {n}" for n in numbers}


def _quota():
    return CallError(FailureKind.QUOTA, "insufficient_quota", "no credit left", status_code=429)
