"""A backfill leaves free slots to the run of the night."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_llm_provider import CompletionSpec, llm_map
from airflow_llm_provider.scheduling.priority import (
    BACKFILL_DISCOUNT,
    BACKFILL_LAST,
    BackfillLast,
    is_registered,
)

SPEC = CompletionSpec(model="m", prompt="{{ text }}", max_output_tokens=8)


def dag_of(**options: Any) -> DAG:
    with DAG("nightly", schedule=None, **options.pop("dag", {})) as dag:
        llm_map(group_id="label", spec=SPEC, source="in", destination="out", **options)
    return dag


def complete_of(dag: DAG) -> Any:
    """The task as the scheduler sees it."""
    from airflow.serialization import serialized_objects

    # Airflow 3.1 has it under another name.
    serialization: Any = (
        getattr(serialized_objects, "DagSerialization", None) or serialized_objects.SerializedDAG
    )
    return serialization.from_dict(serialization.to_dict(dag)).get_task("label.complete")


def weight_of(task: Any, run_id: str, **attributes: Any) -> int:
    return BackfillLast().get_weight(SimpleNamespace(task=task, run_id=run_id, **attributes))


class TestBackfillLast:
    def test_A20_a_backfill_weighs_less_than_any_other_run(self) -> None:
        task = complete_of(dag_of())
        night = weight_of(task, "scheduled__2026-01-02T00:00:00+00:00")
        assert night == weight_of(task, "manual__2026-01-02T00:00:00+00:00")
        assert weight_of(task, "backfill__2026-01-01T00:00:00+00:00") == night - BACKFILL_DISCOUNT

    def test_other_runs_weigh_as_airflow_weighs_them(self) -> None:
        from airflow.task.priority_strategy import validate_and_load_priority_weight_strategy

        task = complete_of(dag_of(complete_kwargs={"priority_weight": 7}))
        ti: Any = SimpleNamespace(task=task, run_id="scheduled__2026-01-02")
        usual = validate_and_load_priority_weight_strategy("downstream").get_weight(ti)
        assert BackfillLast().get_weight(ti) == usual == 8

    @pytest.mark.parametrize("kind", ["backfill", SimpleNamespace(value="backfill")])
    def test_A21_a_run_that_a_backfill_runs_again_counts_as_its_own(self, kind: Any) -> None:
        run = SimpleNamespace(run_type=kind)
        assert weight_of(complete_of(dag_of()), "scheduled__2026-01-01", dag_run=run) < 0

    def test_is_found_by_its_name(self) -> None:
        module, _, name = BACKFILL_LAST.rpartition(".")
        assert getattr(importlib.import_module(module), name) is BackfillLast


class TestDefault:
    def test_shards_of_a_backfill_go_last(self) -> None:
        assert is_registered(), "the entry point is not installed: run make install"
        assert isinstance(complete_of(dag_of()).weight_rule, BackfillLast)

    @pytest.mark.parametrize(
        "options",
        [
            {"complete_kwargs": {"weight_rule": "absolute"}},
            {"default_args": {"weight_rule": "absolute"}},
            {"dag": {"default_args": {"weight_rule": "absolute"}}},
        ],
        ids=["task", "group", "dag"],
    )
    def test_yields_to_a_rule_of_yours(self, options: dict[str, Any]) -> None:
        assert not isinstance(complete_of(dag_of(**options)).weight_rule, BackfillLast)
