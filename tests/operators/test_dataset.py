from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from airflow.sdk import DAG, Asset, task, task_group

from airflow_llm_provider import CompleteDatasetOperator, CompletionSpec, LLMHook
from airflow_llm_provider.engine.call import CallError, FailureKind
from airflow_llm_provider.engine.status import RowStatus
from airflow_llm_provider.errors import LLMInputError, LLMRetryableError
from airflow_llm_provider.hooks.compat import AirflowFailException, AirflowSkipException
from airflow_llm_provider.testing.scripted_client import ScriptedClient
from airflow_llm_provider.xcom import RunSummary, ShardState

SPEC = CompletionSpec(
    model="gpt-4o-mini", prompt="Ticket: {{ subject }}", max_output_tokens=16, temperature=0
)


def operator(night: Any, **changes: Any) -> CompleteDatasetOperator:
    arguments = {
        "task_id": "label",
        "spec": SPEC,
        "source": str(night.source),
        "destination": str(night.destination),
        "max_rows_per_shard": 2,
    }
    return CompleteDatasetOperator(**(arguments | changes))


def run(night: Any, **changes: Any) -> RunSummary:
    return RunSummary.from_json(operator(night, **changes).execute(night.context))


def answering(monkeypatch: pytest.MonkeyPatch, script: Any) -> ScriptedClient:
    client = ScriptedClient(script)
    monkeypatch.setattr(LLMHook, "get_client", lambda _hook, concurrency: client)
    return client


class TestExecute:
    def test_does_all_three_steps(self, night: Any, client: ScriptedClient) -> None:
        summary = run(night)
        assert (summary.rows, summary.succeeded, summary.shards, summary.requests) == (5, 5, 3, 5)
        assert pq.read_table(night.destination).num_rows == 5

    def test_pushes_what_the_three_tasks_push(self, night: Any, client: ScriptedClient) -> None:
        summary = run(night)
        xcoms = night.ti.xcoms
        assert xcoms["run_summary"] == summary.to_json()
        assert xcoms["estimate"]["rows"] == 5
        assert summary.plan_id in xcoms["plan"]
        assert ShardState.from_json(xcoms["shard_state"]).status == "success"

    def test_I1_a_second_run_asks_nothing(self, night: Any, client: ScriptedClient) -> None:
        run(night)
        assert (run(night).requests, run(night).reused) == (0, 5)

    def test_A1_shards_are_not_bound_by_what_airflow_maps(
        self, night: Any, client: ScriptedClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AIRFLOW__CORE__MAX_MAP_LENGTH", "2")
        assert run(night).shards == 3

    def test_A2_an_empty_night_has_an_empty_output(self, night: Any, client: ScriptedClient) -> None:
        night.write()
        assert (run(night).rows, run(night).shards) == (0, 0)

    def test_a_dry_run_skips_the_task(self, night: Any, client: ScriptedClient) -> None:
        with pytest.raises(AirflowSkipException, match="dry run"):
            run(night, dry_run="true")
        assert client.calls == []
        assert night.ti.xcoms["estimate"]["rows"] == 5
        assert not night.destination.exists()

    def test_assets_get_the_summary(self, night: Any, client: ScriptedClient) -> None:
        labels = Asset("labels")
        summary = run(night, outlets=[labels])
        assert night.outlet_events[labels].extra == summary.to_json()


class TestFailures:
    def test_A27_what_was_answered_before_a_kill_is_not_asked_again(
        self, night: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found = operator(night, concurrency=1)

        def third_is_the_last(call: Any) -> Any:
            if len(client.calls) == 3:
                found.on_kill()
            return "fine"

        client = answering(monkeypatch, third_is_the_last)
        with pytest.raises(LLMRetryableError, match="Airflow ended the task"):
            found.execute(night.context)
        assert ShardState.from_json(night.ti.xcoms["shard_state"]).status == "interrupted"
        again = answering(monkeypatch, [])
        assert run(night).succeeded == 5
        assert len(again.calls) == 2

    def test_a_kill_before_the_first_request_sends_none(self, night: Any, client: ScriptedClient) -> None:
        found = operator(night)
        found.on_kill()
        with pytest.raises(LLMRetryableError, match="Airflow ended the task"):
            found.execute(night.context)
        assert client.calls == []

    def test_I9_the_summary_is_there_when_the_threshold_fails_the_task(
        self, night: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        refused = CallError(FailureKind.ROW, "content_filter", "no", row_status=RowStatus.CONTENT_FILTER)
        answering(monkeypatch, [refused])
        with pytest.raises(AirflowFailException, match="1 of 5 rows"):
            run(night, merge_threshold=0.1)
        assert night.ti.xcoms["run_summary"]["rows_by_status"] == {"content_filter": 1, "success": 4}

    def test_B9_a_refused_key_fails_at_once(self, night: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        client = answering(monkeypatch, [CallError(FailureKind.AUTHENTICATION, "invalid_api_key", "no")] * 9)
        with pytest.raises(AirflowFailException):
            run(night)
        assert len(client.calls) == 1


@pytest.fixture
def dag() -> Any:
    with DAG("datasets", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        yield dag


class TestMapping:
    def test_maps_over_sources(self, dag: DAG) -> None:
        mapped = CompleteDatasetOperator.partial(task_id="label", spec=SPEC, concurrency="4").expand_kwargs(
            [{"source": f"/in/{name}", "destination": f"/out/{name}"} for name in "ab"]
        )
        assert mapped.pool_slots == 4
        assert mapped.map_index_template == "{{ task.source }}"

    @pytest.mark.parametrize(
        "destination",
        [
            "/out",
            "/out/{day}",
            Path("/out"),
            "/out/ds={{ ds }}",
            "{{ params.out }}/{{ macros.ds_add(ds, 1) }}/{{ dag_run.run_id }}",
            "/out/{% if params.full %}all{% else %}{{ ts_nodash }}{% endif %}",
        ],
    )
    def test_of_one_destination_would_replace_each_others_output(self, dag: DAG, destination: Any) -> None:
        with pytest.raises(LLMInputError, match=r"' in partial\(\): each mapped task would replace"):
            CompleteDatasetOperator.partial(task_id="label", spec=SPEC, destination=destination)

    def test_of_the_output_of_one_task_would_too(self, dag: DAG) -> None:
        @task
        def place() -> str:
            return "/out"

        with pytest.raises(LLMInputError, match="each mapped task would replace"):
            CompleteDatasetOperator.partial(task_id="label", spec=SPEC, destination=place())

    @pytest.mark.parametrize(
        "destination",
        [
            "/out/{{ task.source }}",
            "/out/{{ ti.map_index }}",
            "/{{ ds }}/{{ task_instance.map_index }}",
            "{{ own() }}",
        ],
    )
    def test_of_templates_that_tell_them_apart_is_taken(self, dag: DAG, destination: str) -> None:
        mapped = CompleteDatasetOperator.partial(task_id="label", spec=SPEC, destination=destination)
        assert mapped.expand(source=["/in/a", "/in/b"]).partial_kwargs["destination"] == destination

    def test_lies_within_mapped_task_groups(self, dag: DAG) -> None:
        @task_group
        def of_country(country: str) -> None:
            CompleteDatasetOperator(
                task_id="label", spec=SPEC, source=country, destination="/out/{{ ti.map_index }}"
            )

        of_country.expand(country=["de", "fr"])
        assert "of_country.label" in dag.task_ids

    def test_a_function_maps_over_sources(self, dag: DAG) -> None:
        @task.llm_complete(
            spec=CompletionSpec(model="m"), concurrency=2, destination="/out/{{ ti.map_index }}"
        )
        def label(row: dict[str, Any]) -> str:
            return str(row["subject"])

        mapped = label.expand(source=["/in/a", "/in/b"])
        assert (mapped.task_id, mapped.pool_slots) == ("label", 2)
        assert mapped.partial_kwargs["spec"].prompt is label.function

    @pytest.mark.parametrize(
        ("wrong", "reason"),
        [
            ({"concurrency": 0}, "concurrency is 0"),
            ({"shard_tokens": 0}, "shard_tokens is 0"),
            ({"merge_threshold": 2}, "merge_threshold is 2"),
            ({"conn_id": "a", "conn_ids": ["b"]}, "give one of them"),
            ({"conn_id": None}, "conn_id and conn_ids are None"),
            ({"spec": "a"}, "spec is a str"),
            ({"spec": CompletionSpec(model="m", prompt="{{ a ")}, "the prompt is no Jinja template"),
            ({"spec": CompletionSpec(model="m")}, "CompletionSpec.prompt is not given"),
        ],
    )
    def test_mistakes_fail_the_parse(self, dag: DAG, wrong: dict[str, Any], reason: str) -> None:
        arguments = {"task_id": "label", "spec": SPEC, "destination": "/out/{{ ti.map_index }}", **wrong}
        named = f"^DAG 'datasets', task 'label': .*{reason}"
        with pytest.raises(LLMInputError, match=named):
            CompleteDatasetOperator.partial(**arguments)
        with pytest.raises(LLMInputError, match=named):
            CompleteDatasetOperator(source="/in", **arguments)
