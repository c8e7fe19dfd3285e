from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_llm_provider import task_summary
from airflow_llm_provider.errors import LLMTerminalError
from airflow_llm_provider.hooks.compat import AirflowFailException
from airflow_llm_provider.xcom import RunSummary, ShardReference, ShardState

SHARD = ShardReference(
    plan="p", shard_id="s", index=3, rows=10, tokens=90, label="shard 0003 · rows 30-39 · 90 tok"
)


def context(xcoms: dict[str, Any], *, map_index: int = 3, **more: Any) -> Any:
    def xcom_pull(*, key: str, task_ids: str, map_indexes: int) -> Any:
        assert (task_ids, map_indexes) == ("label.complete", map_index)
        return xcoms.get(key)

    ti = SimpleNamespace(
        dag_id="tickets",
        task_id="label.complete",
        run_id="scheduled__1",
        map_index=map_index,
        try_number=2,
        xcom_pull=xcom_pull,
    )
    return {"ti": ti, **more}


class TestTaskSummary:
    def test_of_a_shard(self) -> None:
        state = ShardState(
            shard=SHARD,
            status="failed",
            rows_by_status={"success": 7, "error": 1, "pending": 2},
            requests=9,
            cost_usd=0.25,
            errors={"http_500": 1},
            message="the endpoint is down",
        )
        assert task_summary(context({"shard_state": state.to_json()})).splitlines() == [
            "tickets · label.complete[3] · scheduled__1 · try 2",
            "shard 0003 · rows 30-39 · 90 tok: failed; 7 success, 1 error, 2 pending; 9 requests, 0 answers reused, $0.2500",
            "errors: 1 http_500",
            "the endpoint is down",
        ]

    def test_of_a_run(self) -> None:
        summary = RunSummary(
            plan_id="p",
            destination="s3://lake/labels",
            manifest="m",
            rows=10,
            rows_by_status={"success": 9, "error": 1},
            shards=1,
            rejects="s3://lake/labels/_rejects.parquet",
        )
        told = task_summary(context({"run_summary": summary.to_json()}, map_index=-1)).splitlines()
        assert told[0] == "tickets · label.complete · scheduled__1 · try 2"
        assert told[1] == "10 rows (9 success, 1 error), cost unknown, in s3://lake/labels"
        assert told[2] == "rows without an answer: s3://lake/labels/_rejects.parquet"

    def test_an_error_of_ours_is_told_once_and_of_others_only_the_kind(self) -> None:
        error = AirflowFailException("the key is refused")
        error.__cause__ = LLMTerminalError("the key is refused")
        assert task_summary(context({}, exception=error)).splitlines()[1:] == [
            "nothing was sent yet",
            "the key is refused",
        ]
        assert "ValueError" in task_summary(context({}, exception=ValueError("confidential")))
        assert "confidential" not in task_summary(context({}, exception=ValueError("confidential")))

    @pytest.mark.parametrize(
        "due", [datetime(2026, 2, 5, 6, 0, 0, 123, tzinfo=UTC), "2026-02-05T06:00:00.000123Z"]
    )
    def test_of_a_late_run_where_the_callback_knows_of_no_task(self, due: Any) -> None:
        run = {"dag_id": "tickets", "dag_run_id": "scheduled__1", "state": "running"}
        told = task_summary({"dag_run": run, "deadline": {"id": "d", "deadline_time": due}})
        assert told.splitlines() == [
            "tickets · scheduled__1",
            "late: the run was to end by 2026-02-05T06:00:00+00:00, and is running",
        ]

    def test_of_a_dag_that_timed_out_where_the_callback_knows_of_no_task(self) -> None:
        dag: Any = SimpleNamespace(dag_id="tickets")
        told = task_summary({"dag": dag, "run_id": "scheduled__1", "reason": "timed_out"})
        assert told.splitlines() == ["tickets · scheduled__1", "the run: timed_out"]

    def test_of_a_dag_claims_nothing_of_the_tasks_that_it_is_not_told_of(self) -> None:
        assert task_summary(context({}, map_index=-1, reason="task_failure")).splitlines() == [
            "tickets · label.complete · scheduled__1 · try 2",
            "the run: task_failure",
        ]

    @pytest.mark.parametrize(
        "nonsense", [{}, {"dag_run": {}, "deadline": {}}, {"deadline": {"deadline_time": "soon"}}]
    )
    def test_never_raises_whatever_it_is_given(self, nonsense: Any) -> None:
        assert task_summary(nonsense).startswith("None · None")

    @pytest.mark.parametrize("xcom", [{"schema_version": 99}, "text"])
    def test_never_raises(self, xcom: Any) -> None:
        assert "its numbers cannot be read (LLMInputError)" in task_summary(context({"shard_state": xcom}))
