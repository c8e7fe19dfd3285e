from __future__ import annotations

import functools
from datetime import UTC, datetime
from typing import Any

import pytest
from airflow.sdk import DAG, task

from airflow_llm_provider import CompleteDatasetOperator, CompletionSpec
from airflow_llm_provider.decorators.llm_complete import llm_complete_task
from airflow_llm_provider.errors import LLMInputError
from airflow_llm_provider.task_groups.llm_map import LLMTaskGroup

SPEC = CompletionSpec(model="gpt-4o-mini", max_output_tokens=8)
PLACES = {"source": "/in/*.parquet", "destination": "/out/{{ ds }}"}


def ask(row: dict[str, Any]) -> str:
    """Say what to ask about a ticket."""
    return f"Ticket: {row['text']}"


@pytest.fixture
def dag() -> Any:
    with DAG("tickets", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        yield dag


class TestDecorator:
    def test_airflow_knows_it(self) -> None:
        assert task.llm_complete is llm_complete_task

    def test_calling_the_function_builds_the_job(self, dag: DAG) -> None:
        label = task.llm_complete(spec=SPEC, concurrency=4)(ask)
        group = label(**PLACES)
        assert isinstance(group, LLMTaskGroup)
        assert set(dag.task_ids) == {"ask.split", "ask.complete", "ask.merge"}
        assert group.split.spec.prompt is ask
        assert group.split.destination == "/out/{{ ds }}"

    def test_the_call_has_the_last_word(self, dag: DAG) -> None:
        label = task.llm_complete(spec=SPEC, group_id="label", shard_tokens=10, **PLACES)(ask)
        assert label(shard_tokens=20).split.shard_tokens == 20
        assert label.override(group_id="again")().group_id == "again"

    def test_takes_outputs_of_tasks_and_gives_them(self, dag: DAG) -> None:
        @task
        def collect() -> str:
            return "/in"

        @task
        def report(summary: dict[str, Any]) -> None: ...

        label = task.llm_complete(spec=SPEC)(ask)(source=collect(), destination="/out")
        report(label.output)
        assert dag.get_task("ask.split").upstream_task_ids == {"collect"}
        assert dag.get_task("report").upstream_task_ids == {"ask.merge"}

    def test_the_function_is_tested_without_airflow(self) -> None:
        decorated = task.llm_complete(spec=SPEC)(ask)
        assert decorated.function({"text": "a"}) == "Ticket: a"
        assert decorated.__doc__ == ask.__doc__

    def test_without_arguments_everything_comes_with_the_call(self, dag: DAG) -> None:
        assert task.llm_complete(ask)(spec=SPEC, **PLACES).group_id == "ask"


class TestMapped:
    def test_a_parse_says_what_the_last_one_said(self, dag: DAG) -> None:
        """Airflow keeps a mapped task's spec as text: an address in it makes a new version of the DAG at every parse."""
        import functools
        import json

        from airflow.serialization import serialized_objects

        # Airflow 3.1 has no other class for it.
        serialized = getattr(serialized_objects, "DagSerialization", serialized_objects.SerializedDAG)

        def again(row: dict[str, Any]) -> str:
            return ask(row)

        class Asks:
            def __call__(self, row: dict[str, Any]) -> str:
                return ask(row)

        for number, function in enumerate((again, functools.partial(again), Asks(), lambda row: row["text"])):
            CompleteDatasetOperator.partial(
                task_id=f"t{number}",
                spec=CompletionSpec(model="m", prompt=function),
                destination="/out/{{ ti.map_index }}",
            ).expand(source=["/a", "/b"])
        kept = json.dumps(serialized.to_dict(dag))
        assert kept.count("prompt=<function ") == 4
        assert " at 0x" not in kept


class TestMistakes:
    async def _waits(self, row: dict[str, Any]) -> str:
        return ""

    def test_a_coroutine_fails_the_parse_also_where_it_is_mapped(self, dag: DAG) -> None:
        with pytest.raises(LLMInputError, match=r"the prompt _waits\(\) is a coroutine"):
            task.llm_complete(spec=SPEC, destination="/out/{{ ti.map_index }}")(self._waits).expand(
                source=["/a"]
            )

    def test_calling_it_with_a_row_is_explained(self, dag: DAG) -> None:
        with pytest.raises(
            LLMInputError,
            match=r"^DAG 'tickets', @task\.llm_complete 'ask': .*the function itself is its attribute",
        ):
            task.llm_complete(spec=SPEC)(ask)({"text": "a"})

    def test_what_is_missing_is_named(self, dag: DAG) -> None:
        with pytest.raises(
            LLMInputError, match=r"^DAG 'tickets', @task\.llm_complete 'ask': it lacks spec, destination"
        ):
            task.llm_complete(ask)(source="/in")
        with pytest.raises(LLMInputError, match=r"^DAG 'tickets', @task\.llm_complete 'ask': it lacks spec"):
            task.llm_complete(ask).partial()

    def test_two_prompts_are_refused(self, dag: DAG) -> None:
        both = CompletionSpec(model="m", prompt="{{ a }}")
        with pytest.raises(LLMInputError, match="DAG 'tickets', llm_map 'ask': the spec has a prompt"):
            task.llm_complete(spec=both, **PLACES)(ask)()

    def test_a_function_that_takes_no_row_fails_the_parse_and_names_the_dag(self, dag: DAG) -> None:
        def nothing() -> str:
            return "a"

        decorated = task.llm_complete(spec=SPEC, **PLACES)(nothing)
        with pytest.raises(LLMInputError, match=r"DAG 'tickets', llm_map 'nothing': the prompt nothing\(\)"):
            decorated()

    def test_arguments_are_those_of_llm_map(self, dag: DAG) -> None:
        with pytest.raises(LLMInputError, match="did you mean concurrency"):
            task.llm_complete(spec=SPEC, concurency=4, **PLACES)(ask)()

    def test_what_is_wrong_with_a_mapped_one_names_the_dag(self, dag: DAG) -> None:
        both = CompletionSpec(model="m", prompt="{{ a }}")
        with pytest.raises(LLMInputError, match=r"^DAG 'tickets', @task\.llm_complete 'ask': the spec has a"):
            task.llm_complete(spec=both)(ask).partial()
        with pytest.raises(LLMInputError, match=r"^DAG 'tickets', task 'ask': concurrency is 0"):
            task.llm_complete(spec=SPEC, concurrency=0)(ask).partial()

    def test_a_function_without_a_name_asks_for_one(self, dag: DAG) -> None:
        decorated = task.llm_complete(spec=SPEC, **PLACES)(lambda row: str(row["text"]))
        with pytest.raises(
            LLMInputError, match="<lambda> has no name that its tasks could have: give group_id"
        ):
            decorated()
        assert decorated(group_id="short").group_id == "short"
        mapped = task.llm_complete(spec=SPEC, group_id="mapped")(lambda row: str(row["text"]))
        assert mapped.partial().expand_kwargs([PLACES]).task_id == "mapped"

    def test_a_partial_has_the_name_of_its_function(self, dag: DAG) -> None:
        def worded(row: dict[str, Any], *, opening: str) -> str:
            return opening + str(row["text"])

        decorated = task.llm_complete(spec=SPEC, **PLACES)(functools.partial(worded, opening="Sort: "))
        assert decorated().group_id == "worded"
        assert decorated.function({"text": "a"}) == "Sort: a"
        assert "worded" in repr(dag.get_task("worded.split").spec)

    def test_outside_of_a_dag_is_refused(self) -> None:
        with pytest.raises(LLMInputError, match="call it inside"):
            task.llm_complete(spec=SPEC, **PLACES)(ask)()
