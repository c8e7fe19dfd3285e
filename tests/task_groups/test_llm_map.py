from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
import pytest
from airflow.sdk import DAG, Asset, AssetAlias, TaskGroup, chain, dag, task, task_group

from airflow_llm_provider import CompletionSpec, llm_map
from airflow_llm_provider.errors import LLMInputError
from airflow_llm_provider.scheduling.retry_policy import RETRY_POLICIES, LLMRetryPolicy

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_llm_provider.task_groups.llm_map import LLMTaskGroup

START = datetime(2025, 1, 1, tzinfo=UTC)
SPEC = CompletionSpec(model="gpt-4o-mini", prompt="Ticket: {{ subject }}")


def job(**changes: Any) -> LLMTaskGroup:
    arguments: dict[str, Any] = {"group_id": "label", "spec": SPEC, "source": "/in", "destination": "/out"}
    return llm_map(**(arguments | changes))


def build(dag_arguments: dict[str, Any] | None = None, **changes: Any) -> LLMTaskGroup:
    with DAG("nightly", start_date=START, schedule=None, **(dag_arguments or {})):
        return job(**changes)


def refusal(**changes: Any) -> str:
    with pytest.raises(LLMInputError, match=r"^DAG 'nightly', llm_map 'label': ") as caught:
        build(**changes)
    return str(caught.value)


class TestShape:
    def test_is_split_then_complete_then_merge(self) -> None:
        label = build()
        assert [node.task_id for node in label.dag.topological_sort()] == [
            "label.split",
            "label.complete",
            "label.merge",
        ]
        assert label.complete.upstream_task_ids == {"label.split"}
        assert label.merge.upstream_task_ids == {"label.split", "label.complete"}

    def test_by_file_it_begins_with_list_then_count_then_plan(self) -> None:
        label = build(split_by="file", split_bytes=5, split_kwargs={"queue": "io"})
        names = [f"label.{name}" for name in ("list", "count", "plan", "complete", "merge")]
        assert [node.task_id for node in label.dag.topological_sort()] == names
        assert label.complete.upstream_task_ids == {"label.plan"}
        assert label.split.upstream_task_ids == {"label.list", "label.count"}
        assert label.split.trigger_rule == "none_failed_min_one_success"
        assert label.list_files.split_bytes == 5
        assert label.count_files.map_index_template == "{{ task.files['label'] }}"
        assert {task.queue for task in (label.list_files, label.count_files, label.split)} == {"io"}

    def test_by_anything_else_is_refused(self) -> None:
        assert "split_by is 'row': give 'file' or None" in refusal(split_by="row")

    def test_a_pool_slot_is_one_request_in_flight(self) -> None:
        label = build(pool="llm", concurrency=7)
        assert (label.complete.pool, label.complete.pool_slots) == ("llm", 7)
        assert (label.split.pool, label.split.pool_slots) == ("default_pool", 1)

    def test_A17_labels_come_from_the_shard_itself(self) -> None:
        assert build().complete.map_index_template == "{{ task.shard['label'] }}"

    def test_A2_an_empty_night_still_merges(self) -> None:
        assert build().merge.trigger_rule == "none_failed_min_one_success"

    def test_the_merge_keeps_its_rule_under_default_args(self) -> None:
        label = build({"default_args": {"trigger_rule": "all_success"}})
        assert label.merge.trigger_rule == "none_failed_min_one_success"

    def test_B8_the_split_pushes_even_where_the_dag_pushes_nothing(self) -> None:
        label = build({"default_args": {"do_xcom_push": False}})
        assert label.split.do_xcom_push
        assert not label.merge.do_xcom_push

    def test_the_prompt_is_no_template_of_airflow(self) -> None:
        label = build(spec=CompletionSpec(model="m", prompt="{{ subject }} {{ ds }}"))
        assert "spec" not in label.split.template_fields
        assert label.split.spec.prompt == "{{ subject }} {{ ds }}"


class TestDownstream:
    def test_group_and_output_can_be_depended_on(self) -> None:
        with DAG("nightly", start_date=START, schedule=None) as nightly:

            @task
            def begin() -> str:
                return "/in"

            @task
            def report(summary: dict[str, Any]) -> None: ...

            first = begin()
            label = job(source=first)
            again = job(group_id="again", source="/out")
            done = report(label.output)
            chain(label, again, done)
        assert label.split.upstream_task_ids == {"begin"}
        assert again.split.upstream_task_ids == {"label.merge"}
        assert nightly.get_task("report").upstream_task_ids == {"label.merge", "again.merge"}

    def test_works_in_task_groups_and_in_decorated_dags(self) -> None:
        @dag(dag_id="decorated", start_date=START, schedule=None)
        def decorated() -> None:
            with TaskGroup("outer"):
                job()

            @task_group
            def inner() -> None:
                job()

            inner()

        assert {node.task_id for node in decorated().tasks} == {
            f"{outer}.label.{name}" for outer in ("outer", "inner") for name in ("split", "complete", "merge")
        }


class TestRetries:
    @pytest.mark.parametrize("name", ["split", "complete", "merge"])
    def test_every_task_is_retried_patiently_by_default(self, name: str) -> None:
        task = getattr(build(), name)
        assert (task.retries, task.retry_delay) == (2, timedelta(minutes=1))
        assert task.retry_exponential_backoff
        assert task.max_retry_delay == timedelta(minutes=10)

    def test_shards_are_retried_when_the_endpoint_said(self) -> None:
        if not RETRY_POLICIES:
            assert "retry_policy" not in build().complete.partial_kwargs
            return
        assert isinstance(build().complete.partial_kwargs["retry_policy"], LLMRetryPolicy)
        ours = LLMRetryPolicy()
        assert build({"default_args": {"retry_policy": ours}}).complete.partial_kwargs["retry_policy"] is ours
        chosen = build(complete_kwargs={"retry_policy": None})
        assert chosen.complete.partial_kwargs["retry_policy"] is None

    @pytest.mark.parametrize("where", ["dag", "group"])
    def test_default_args_win_over_our_default(self, where: str) -> None:
        ours = {"retries": 5, "retry_delay": timedelta(seconds=3)}
        label = build({"default_args": ours}) if where == "dag" else build(default_args=ours)
        assert (label.complete.retries, label.complete.retry_delay) == (5, timedelta(seconds=3))
        assert (label.split.retries, label.merge.retries) == (5, 5)

    def test_default_args_of_an_outer_group_win_too(self) -> None:
        with DAG("nightly", start_date=START, schedule=None), TaskGroup("outer", default_args={"retries": 4}):
            assert job().complete.retries == 4

    def test_the_argument_wins_over_default_args(self) -> None:
        label = build({"default_args": {"retries": 5}}, retries=0)
        assert [label.split.retries, label.complete.retries, label.merge.retries] == [0, 0, 0]

    def test_a_single_task_can_differ(self) -> None:
        label = build(retries=1, complete_kwargs={"retries": 9, "execution_timeout": timedelta(hours=1)})
        assert [label.split.retries, label.complete.retries] == [1, 9]
        assert label.complete.execution_timeout == timedelta(hours=1)


class TestPool:
    def test_comes_from_default_args_before_the_configuration(self) -> None:
        assert build({"default_args": {"pool": "night"}}).complete.pool == "night"

    def test_comes_from_the_configuration_when_nobody_names_one(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AIRFLOW__LLM__DEFAULT_POOL", "llm")
        assert build().complete.pool == "llm"

    def test_is_airflows_own_otherwise(self) -> None:
        assert build().complete.pool == "default_pool"


class TestAsset:
    def test_is_named_after_the_dag_and_the_group(self) -> None:
        label = build()
        assert label.asset == Asset("nightly.label")
        assert label.merge.outlets == [Asset("nightly.label")]

    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            ("s3://lake/labels", Asset("s3://lake/labels")),
            (Asset("labels", uri="s3://lake/labels"), Asset("labels", uri="s3://lake/labels")),
            (AssetAlias("labels"), AssetAlias("labels")),
        ],
    )
    def test_can_be_chosen(self, given: Any, expected: Any) -> None:
        assert build(asset=given).merge.outlets == [expected]

    def test_can_be_left_out(self) -> None:
        label = build(asset=False)
        assert (label.asset, label.merge.outlets) == (None, [])


class TestRefusals:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"shard_token": 5}, "there is no argument shard_token: did you mean shard_tokens?"),
            ({"zebra": 5}, "there is no argument zebra: arguments of single tasks go into split_kwargs"),
            ({"concurrency": 0}, "concurrency is 0: give a whole number of at least 1"),
            ({"concurrency": "{{ params.n }}"}, "concurrency is"),
            ({"shard_tokens": 0}, "shard_tokens is 0"),
            ({"shard_tokens": "many"}, "shard_tokens is 'many'"),
            ({"max_attempts": 0}, "max_attempts is 0"),
            ({"timeout": -1}, "timeout is -1"),
            ({"failure_threshold": 5}, "failure_threshold is 5: give a share from 0 to 1"),
            ({"where": "lang = 'de"}, 'where, character 8, "\'": this text is not closed'),
            ({"where": pc.field("lang") == "de"}, "where is a Expression: a DAG holds text"),
            ({"columns": []}, "columns is []: give a list of different names"),
            ({"columns": "id, id"}, "columns is 'id, id'"),
            ({"dry_run": "perhaps"}, "dry_run is 'perhaps': give true or false"),
            ({"source": ""}, "source is ''"),
            ({"destination": None}, "destination is None"),
            ({"conn_id": ""}, "conn_id is ''"),
            ({"conn_ids": []}, "conn_ids is []: give a list of different connection ids"),
            ({"conn_ids": {"a": 0}}, "conn_ids['a'] is 0: give a whole number of at least 1"),
            ({"conn_id": "a", "conn_ids": ["b"]}, "give one of them"),
            ({"max_tokens_total": 0}, "max_tokens_total is 0"),
            ({"max_cost_usd": "much"}, "max_cost_usd is 'much': give US dollars above 0"),
            ({"deduplicate": "perhaps"}, "deduplicate is 'perhaps': give true or false"),
            ({"adaptive": "perhaps"}, "adaptive is 'perhaps': give true or false"),
            ({"spec": {"model": "m"}}, "spec is a dict: give a CompletionSpec"),
            ({"spec": CompletionSpec(model="m", prompt="{{ open")}, "prompt"),
            ({"split_kwargs": {"nonsense": 1}}, "nonsense"),
            ({"complete_kwargs": {"nonsense": 1}}, "nonsense"),
            ({"merge_kwargs": {"nonsense": 1}}, "nonsense"),
        ],
    )
    def test_name_the_dag_the_group_and_the_remedy(self, changes: dict[str, Any], message: str) -> None:
        assert message in refusal(**changes)

    def test_a_fallback_that_is_the_model_itself_is_refused(self) -> None:
        assert "fallback_model is 'small', the model itself" in refusal(model="small", fallback_model="small")

    def test_templates_are_not_judged_before_they_are_rendered(self) -> None:
        build(
            shard_tokens="{{ params.shard_tokens }}",
            columns="{{ params.columns }}",
            where="day = '{{ ds }}' AND",
            dry_run="{{ params.dry_run }}",
            model="{{ params.model }}",
            source="s3://lake/ds={{ ds }}",
            conn_ids=["{{ params.first }}", "second"],
            max_tokens_total="{{ params.tokens }}",
            max_cost_usd="{{ params.dollars }}",
            fallback_model="{{ params.fallback }}",
            deduplicate="{{ params.deduplicate }}",
        )

    def test_the_cap_reaches_the_split_which_knows_prices_and_the_shards_which_spend(self) -> None:
        label = build(max_cost_usd=2.5, fallback_model="small", max_tokens_total=1000)
        assert (label.split.max_cost_usd, label.split.fallback_model) == (2.5, "small")
        spending = {
            name: label.complete.partial_kwargs[name] for name in ("max_cost_usd", "max_tokens_total")
        }
        assert spending == {"max_cost_usd": 2.5, "max_tokens_total": 1000}

    def test_outside_a_dag_it_says_where_to_call_it(self) -> None:
        with pytest.raises(LLMInputError, match=r"llm_map 'label': .*with DAG"):
            job()

    def test_inside_a_mapped_task_group_it_says_what_to_do_instead(self) -> None:
        with DAG("nightly", start_date=START, schedule=None):

            @task_group
            def per_country(country: str) -> None:
                job(source=country)

            with pytest.raises(LLMInputError, match="Python loop"):
                per_country.expand(country=["de", "fr"])


SERIALIZE = """
import json
from datetime import datetime, timezone
from airflow.sdk import DAG, Asset
from airflow_llm_provider import CompletionSpec, llm_map
try:
    from airflow.serialization.serialized_objects import DagSerialization as Serialization
except ImportError:
    from airflow.serialization.serialized_objects import SerializedDAG as Serialization

with DAG("nightly", start_date=datetime(2025, 1, 1, tzinfo=timezone.utc), schedule=None) as dag:
    llm_map(
        group_id="label",
        spec=CompletionSpec(
            model="m",
            prompt="SECRET-PROMPT {{ subject }}",
            output_schema={"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}},
            request_params={"seed": 1, "top_p": 0.5},
        ),
        source="/in",
        destination="/out/ds={{ ds }}",
        complete_kwargs={"executor_config": {"b": 1, "a": 2}},
    )
print(json.dumps(Serialization.to_dict(dag)))
"""


def serialized(seed: str) -> str:
    environment = os.environ | {"PYTHONHASHSEED": seed}
    done = subprocess.run(
        [sys.executable, "-c", SERIALIZE],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
        timeout=120,
    )
    return done.stdout.splitlines()[-1]


class TestSerialization:
    def test_two_parses_give_the_same_dag_version(self) -> None:
        first, second = serialized("1"), serialized("2")
        # Airflow sorts the keys itself before it compares versions.
        assert json.loads(first) == json.loads(second)

    def test_the_prompt_is_not_in_the_metadata_database(self) -> None:
        assert "SECRET-PROMPT" not in serialized("0")


def test_paths_are_taken_as_they_are(tmp_path: Path) -> None:
    assert build(source=tmp_path).split.source == tmp_path
