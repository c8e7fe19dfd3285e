from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk import DAG, TaskGroup

from airflow_llm_provider import (
    CompleteDatasetOperator,
    CompleteShardOperator,
    CompletionSpec,
    CountFilesOperator,
    ListFilesOperator,
    MergeShardsOperator,
    PlanShardsOperator,
    ShardDatasetOperator,
)
from airflow_llm_provider.errors import LLMInputError
from airflow_llm_provider.operators.place import naming

if TYPE_CHECKING:
    from collections.abc import Callable

START = datetime(2026, 1, 1, tzinfo=UTC)
PLACES = {"spec": CompletionSpec(model="m", prompt="{{ a }}"), "source": "/in", "destination": "/out"}

WRONG: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (ShardDatasetOperator, PLACES | {"shard_tokens": 0}),
    (ListFilesOperator, PLACES | {"split_bytes": 0}),
    (CountFilesOperator, {"files": {}, "destination": ""}),
    (CountFilesOperator.partial, {"destination": ""}),
    (PlanShardsOperator, {"listing": "x", "destination": ""}),
    (CompleteShardOperator, {"shard": {}, "timeout": 0}),
    (CompleteShardOperator, {"shard": {}, "concurrency": 0}),
    (CompleteShardOperator.partial, {"timeout": 0}),
    (MergeShardsOperator, {"plan": "x", "failure_threshold": 2}),
    (CompleteDatasetOperator, PLACES | {"shard_tokens": 0}),
    (CompleteDatasetOperator, PLACES | {"concurrency": 0}),
    (CompleteDatasetOperator.partial, PLACES),
    (CompleteDatasetOperator.partial, {"spec": 1}),
]


class TestAWrongArgument:
    @pytest.mark.parametrize(("make", "arguments"), WRONG)
    def test_names_the_dag_and_the_task_once(self, make: Any, arguments: dict[str, Any]) -> None:
        dag = DAG("nightly", schedule=None, start_date=START)
        with pytest.raises(LLMInputError) as caught, dag, TaskGroup("tickets"):
            make(task_id="label", **arguments)
        said = str(caught.value)
        assert said.startswith("DAG 'nightly', task 'tickets.label': ")
        assert said.count("nightly") == 1

    @pytest.mark.parametrize(("make", "arguments"), WRONG)
    def test_names_the_dag_that_is_given(self, make: Any, arguments: dict[str, Any]) -> None:
        dag = DAG("given", schedule=None, start_date=START)
        with pytest.raises(LLMInputError, match="^DAG 'given', task 'label': "):
            make(task_id="label", dag=dag, **arguments)

    @pytest.mark.parametrize(("make", "arguments"), WRONG)
    def test_names_the_task_alone_outside_of_a_dag(self, make: Any, arguments: dict[str, Any]) -> None:
        with pytest.raises(LLMInputError, match="^task 'label': "):
            make(task_id="label", **arguments)


class TestNaming:
    def test_a_larger_place_takes_the_place_of_a_smaller_one(self) -> None:
        with pytest.raises(LLMInputError, match="^group: wrong$"), naming("group"), naming("task"):
            raise LLMInputError("wrong")

    def test_what_the_caller_calls_wrong_is_named_too(self) -> None:
        with pytest.raises(LLMInputError, match="^group: odd$"), naming("group", TypeError):
            raise TypeError("odd")

    def test_other_errors_pass(self) -> None:
        with pytest.raises(KeyError), naming("group"):
            raise KeyError("other")
