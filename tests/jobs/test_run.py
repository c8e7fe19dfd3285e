"""One job from rows to rows."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from airflow_llm_provider.engine.call import CallError, FailureKind
from airflow_llm_provider.errors import (
    LLMAuthenticationError,
    LLMConfigurationError,
    LLMFailureThresholdError,
    LLMInputError,
    LLMQuotaError,
    LLMRetryableError,
)
from airflow_llm_provider.jobs import merge, run_dataset, split
from airflow_llm_provider.spec import CompletionSpec
from airflow_llm_provider.testing.scripted_client import reply

TEXTS = [f"row {n}" for n in range(12)]


class TestManyFiles:
    def test_A18_only_the_first_hundred_cross_xcom(self, job):
        job.write([f"t{n}" for n in range(120)])
        summary = job.run(partition_by=["text"])
        assert len(summary.files) == 100
        assert "/text=t0/" in summary.files[0]
        assert len(job.output()) == 120


class TestOutput:
    def test_rows_in_are_rows_out_in_order(self, job):
        job.write(TEXTS, id=list(range(12)))
        summary = job.run(max_rows_per_shard=5)
        assert [row["id"] for row in job.output()] == list(range(12))
        assert [row["answer"] for row in job.output()] == [f"answer to {text}" for text in TEXTS]
        assert (summary.rows, summary.succeeded, summary.shards, summary.requests) == (12, 12, 3, 12)

    def test_summary_crosses_json(self, job):
        job.write(TEXTS)
        summary = job.run()
        assert type(summary).from_json(json.loads(json.dumps(summary.to_json()))) == summary

    def test_A2_no_rows_make_an_empty_output_with_the_schema(self, job):
        job.write([])
        summary = job.run()
        assert (summary.rows, summary.shards, summary.rows_by_status) == (0, 0, {})
        assert {"text", "answer", "llm_status"} <= set(pq.read_table(summary.files[0]).column_names)

    def test_A9_merge_ignores_states_that_are_none(self, job):
        job.write(TEXTS)
        result = job.split()
        job.shard_run(result.references[0]).run()
        assert merge(result.plan_uri, states=[None]).rows == 12

    def test_what_does_not_fit_its_column_is_counted_as_the_output_says(self, job):
        schema = {"type": "object", "properties": {"n": {"type": "number"}}, "required": ["n"]}
        job.spec = CompletionSpec(model="m", prompt="{{ text }}", output_schema=schema)
        job.answer = lambda call: (
            '{"n": 1%s}' % ("0" * 400 if call.body["messages"][-1]["content"] == "a" else "")
        )
        job.write(["a", "b"])
        summary = job.run()
        assert job.states[0].rows_by_status == summary.rows_by_status == {"success": 1, "invalid_output": 1}
        assert job.states[0].errors == {"does_not_fit_column": 1}
        assert job.run().rows_by_status == summary.rows_by_status
        assert job.states[0].rows_by_status == summary.rows_by_status

    def test_schema_makes_typed_columns(self, job):
        schema = {
            "type": "object",
            "properties": {"label": {"enum": ["a", "b"]}, "score": {"type": "integer"}},
            "required": ["label", "score"],
        }
        job.spec = CompletionSpec(model="m", prompt="{{ text }}", output_schema=schema)
        job.write(["x", "y"])
        job.answer = lambda _: '{"label": "a", "score": 3}'
        job.run()
        assert [(row["label"], row["score"]) for row in job.output()] == [("a", 3), ("a", 3)]

    def test_cost_is_known_for_a_priced_model_and_unknown_otherwise(self, job):
        job.write(TEXTS)
        job.answer = lambda _: reply("ok", model="gpt-4o-mini")
        assert job.run().cost_usd == pytest.approx(12 * (10 * 0.15 + 5 * 0.6) / 1e6)
        job.spec = CompletionSpec(model="house-model", prompt="{{ text }}")
        job.answer = lambda _: reply("ok", model="house-model")
        assert job.run().cost_usd is None

    @pytest.mark.parametrize("model", ["gpt-4o-mini", "house-model"])
    def test_a_run_that_sent_nothing_cost_nothing_whatever_the_price(self, job, model):
        job.write(TEXTS)
        job.spec = CompletionSpec(model=model, prompt="{{ text }}")
        job.answer = lambda _: reply("ok", model=model)
        job.run()
        again = job.run()
        assert (again.requests, again.cost_usd) == (0, 0.0)


class TestBadSettings:
    @pytest.mark.parametrize(
        ("kind", "error"),
        [
            (FailureKind.QUOTA, LLMQuotaError),
            (FailureKind.AUTHENTICATION, LLMAuthenticationError),
            (FailureKind.CONFIGURATION, LLMConfigurationError),
        ],
    )
    def test_C1_C18_the_first_such_answer_stops_the_shard(self, job, kind, error):
        job.write(TEXTS)
        job.answer = lambda _: CallError(kind, "nope", "refused", status_code=400)
        with pytest.raises(error):
            job.run()
        assert job.requests() == 1
        assert job.last_run.state.rows_by_status == {"pending": 12}
        assert job.last_run.state.errors == {"nope": 1}

    def test_an_endpoint_without_any_answer_is_retryable(self, job):
        job.write(["a", "b"])
        job.answer = lambda _: CallError(FailureKind.TIMEOUT, "timeout", "no answer")
        with pytest.raises(LLMRetryableError, match="2 timeout"):
            job.run(complete={"max_attempts": 2})

    def test_no_usable_answer_at_all_fails_the_shard_and_says_why(self, job):
        job.write(["a", "b"])
        job.answer = lambda _: reply("", finish_reason="length")
        with pytest.raises(LLMFailureThresholdError, match="truncated"):
            job.run()

    @pytest.mark.parametrize(
        ("threshold", "fails"), [(0.0, True), (0.05, False), (None, False), (1.0, False)]
    )
    def test_I9_the_failure_threshold_decides(self, job, threshold, fails):
        job.write([f"row {n}" for n in range(100)])
        job.answer = lambda call: (
            CallError(FailureKind.ROW, "rejected", "no")
            if call.body["messages"][-1]["content"] in {"row 1", "row 2", "row 3"}
            else "yes"
        )
        if fails:
            with pytest.raises(LLMFailureThresholdError, match=r"3 of 100 rows \(3.0%\).*0.0%"):
                job.run(complete={"failure_threshold": threshold})
        else:
            assert job.run(complete={"failure_threshold": threshold}).succeeded == 97

    def test_A1_too_many_shards_leave_nothing_behind(self, job, tmp_path):
        job.write([f"row {n}" for n in range(1025)])
        with pytest.raises(LLMInputError, match=r"1,025.*max_shards allows 1,024"):
            job.split(shard_tokens=1, max_shards=1024, fit_max_shards=False)
        assert not (tmp_path / "out").exists()

    def test_A1_shards_grow_to_fit_when_asked_to(self, job):
        job.write([f"row {n}" for n in range(1025)])
        assert len(job.split(shard_tokens=1, max_shards=1024).references) <= 1024

    @pytest.mark.parametrize("name", ["source", "destination"])
    def test_an_empty_location_is_not_the_current_folder(self, job, name):
        job.write(TEXTS)
        places = {"source": job.source, "destination": job.destination, name: " "}
        with pytest.raises(LLMInputError, match=f"{name} is empty"):
            split(job.spec, places["source"], places["destination"])

    def test_a_destination_that_is_none_is_refused(self, job):
        job.write(TEXTS)
        for run in (split, run_dataset):
            with pytest.raises(LLMInputError, match="destination is a int: give a path or URL"):
                run(job.spec, job.source, 5)

    def test_bounds_beyond_64_bits_are_kept(self, job):
        schema = {
            "type": "object",
            "properties": {"n": {"type": "integer", "maximum": 2**80}},
            "required": ["n"],
        }
        job.spec = CompletionSpec(model="m", prompt="{{ text }}", output_schema=schema)
        job.write(["x", "y"])
        job.answer = lambda _: '{"n": 1}'
        assert job.run().succeeded == 2
        assert job.run().requests == 0

    def test_half_a_surrogate_pair_in_the_prompt_is_kept_in_the_plan(self, job):
        job.spec = CompletionSpec(model="m", prompt="\ud83d {{ text }}")
        job.write(["x", "y"])
        assert job.run().succeeded == 2

    def test_B5_run_scoped_values_are_refused(self, job):
        job.write(TEXTS)
        job.spec = CompletionSpec(model="m", prompt="{{ ds }} {{ text }}")
        with pytest.raises(LLMInputError, match="value of the run"):
            job.split()


class TestBytes:
    def test_no_shard_has_more_than_it_may_but_one_row_that_alone_has(self, job):
        texts = ["x" * 1_000] * 7 + ["y" * 10_000] + ["x" * 1_000] * 4
        job.write(texts)
        references = job.split(max_bytes_per_shard=4_096).references
        assert [reference.rows for reference in references] == [4, 3, 1, 4]

    def test_nothing_is_no_bound(self, job):
        job.write(TEXTS)
        with pytest.raises(LLMInputError, match="max_bytes_per_shard is 0"):
            job.split(max_bytes_per_shard=0)


class TestDryRun:
    def test_I6_says_what_it_would_cost_and_writes_nothing(self, job, tmp_path):
        job.write(TEXTS)
        result = job.split(dry_run=True, max_rows_per_shard=5)
        estimate = result.estimate
        assert (estimate.rows, estimate.shards, estimate.requests) == (12, 3, 12)
        assert estimate.max_completion_tokens == 12 * 1024
        assert 0 < estimate.cost_low_usd < estimate.cost_high_usd
        assert (result.plan_uri, result.references) == (None, ())
        assert not (tmp_path / "out").exists()

    def test_I6_an_unknown_price_is_shown_as_unknown(self, job):
        job.write(TEXTS)
        job.spec = CompletionSpec(model="house-model", prompt="{{ text }}")
        assert "cost unknown" in str(job.split(dry_run=True).estimate)


class TestLimit:
    def test_a_trial_asks_the_first_rows_and_the_whole_run_only_the_rest(self, job):
        job.write(TEXTS)
        assert job.run(limit=5, max_rows_per_shard=2).rows == 5
        assert job.calls == TEXTS[:5]
        assert [row["text"] for row in job.output()] == TEXTS[:5]
        job.requests()
        assert job.run(max_rows_per_shard=4).rows == 12
        assert job.calls == TEXTS[5:]

    def test_a_limit_beyond_the_rows_takes_them_all(self, job):
        job.write(TEXTS)
        assert job.split(dry_run=True, limit=10**9).estimate.rows == 12

    def test_a_limit_of_nothing_is_refused(self, job):
        job.write(TEXTS)
        with pytest.raises(LLMInputError, match="limit is 0"):
            job.split(limit=0)


class TestAnsweredAlready:
    def test_says_how_many_requests_are_left_to_pay_for(self, job):
        job.write(TEXTS)
        before = job.split(dry_run=True).estimate
        assert before.answered == 0
        job.run(max_rows_per_shard=5)
        job.write([*TEXTS, "new", None])
        after = job.split(dry_run=True, max_rows_per_shard=5).estimate
        assert (after.requests, after.answered) == (13, 12)
        assert 0 < after.cost_high_usd < before.cost_high_usd
        assert "13 requests, of them 12 answered already" in str(after)
        assert "cost for the other 1 $" in str(after)
        job.requests()
        job.run(max_rows_per_shard=5)
        assert job.calls == ["new"]
        assert job.split(max_rows_per_shard=5).estimate.answered == 13
        assert job.split(dry_run=True, start_over=True).estimate.answered == 0

    def test_an_answer_counts_once_for_each_row_that_takes_it(self, job):
        job.write(["same", "same", "other"])
        job.run()
        job.write(["same"] * 4 + ["other"])
        assert job.split(dry_run=True).estimate.answered == 3


class TestSecrecy:
    def test_row_text_stays_out_of_states_logs_and_messages(self, job, caplog):
        secret = "4111-1111-1111-1111"
        job.write([f"{secret} {n}" for n in range(6)])
        job.answer = lambda _: reply(f"I repeat {secret}", finish_reason="length")
        caplog.set_level(0)
        with pytest.raises(LLMFailureThresholdError) as caught:
            job.run()
        told = caplog.text + str(caught.value) + json.dumps(job.last_run.state.to_json())
        told += json.dumps([ref.to_json() for ref in job.split().references])
        assert secret not in told

    def test_A18_a_thousand_references_stay_small(self, job):
        job.write([f"row {n} " + "x" * 2000 for n in range(1024)])
        references = [ref.to_json() for ref in job.split(max_rows_per_shard=1).references]
        text = json.dumps(references)
        assert len(references) == 1024
        assert len(text) < 256 * 1024
        assert max(len(json.dumps(ref)) for ref in references) <= 300
        assert "xxx" not in text


class TestRunDataset:
    def test_does_the_three_steps_against_a_real_server(self, job, scripted_server):
        job.write(TEXTS)
        kwargs = {"base_url": scripted_server.base_url, "shard_tokens": 30}
        first = run_dataset(job.spec, job.source, job.destination, **kwargs)
        assert (first.rows, first.succeeded, first.requests) == (12, 12, 12)
        assert first.shards > 1
        again = run_dataset(job.spec, job.source, job.destination, **kwargs)
        assert (again.requests, again.reused) == (0, 12)
        assert len(scripted_server.requests) == 12

    def test_the_destination_may_be_a_path(self, job, scripted_server):
        job.write(TEXTS)
        run_dataset(job.spec, job.source, job.folder / "out", base_url=scripted_server.base_url)
        assert len(job.output()) == 12

    def test_a_wrong_keep_days_is_found_before_anything_is_paid_for(self, job, scripted_server):
        job.write(TEXTS)
        with pytest.raises(LLMInputError, match="keep_days is 0"):
            run_dataset(job.spec, job.source, job.destination, base_url=scripted_server.base_url, keep_days=0)
        assert not scripted_server.requests

    @pytest.mark.parametrize(
        "wrong", [{"base_url": "nonsense"}, {"base_url": 80}, {"api_key": b"key"}, {"api_key": "two words"}]
    )
    def test_an_endpoint_or_a_key_that_is_none_is_refused_before_anything_is_written(self, job, wrong):
        job.write(["a"])
        with pytest.raises(LLMInputError, match=r"base.(URL|url)|API key|api_key"):
            run_dataset(job.spec, job.source, job.destination, **wrong)
        assert not Path(job.destination).exists()

    @pytest.mark.parametrize(
        ("wrong", "said"),
        [
            ({"spec": {"model": "m"}}, "spec is a dict: give a CompletionSpec"),
            ({"split_options": {}}, "split_options is a dict: give SplitOptions, or None"),
            ({"client": "http://127.0.0.1/v1"}, "client is a str: give a function that makes one, or None"),
        ],
    )
    def test_what_is_of_another_kind_is_refused_before_anything_is_written(self, job, wrong, said):
        job.write(["a"])
        with pytest.raises(LLMInputError, match=said):
            run_dataset(**{"spec": job.spec, "source": job.source, "destination": job.destination, **wrong})
        assert not Path(job.destination).exists()

    def test_works_inside_a_running_loop_as_in_a_notebook(self, job, scripted_server):
        job.write(TEXTS)

        async def cell():
            return run_dataset(job.spec, job.source, job.destination, base_url=scripted_server.base_url)

        assert asyncio.run(cell()).succeeded == 12
