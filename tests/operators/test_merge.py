from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow.parquet as pq
import pytest
from airflow.sdk import Asset, AssetAlias

from airflow_llm_provider import CompleteShardOperator, LLMHook, MergeShardsOperator
from airflow_llm_provider.engine.call import CallError, FailureKind
from airflow_llm_provider.engine.status import RowStatus
from airflow_llm_provider.errors import LLMInputError, LLMStateError
from airflow_llm_provider.hooks.compat import AirflowFailException, AirflowSkipException
from airflow_llm_provider.testing.scripted_client import ScriptedClient
from airflow_llm_provider.xcom import RunSummary


def merge(night: Any, **changes: Any) -> RunSummary:
    task = MergeShardsOperator(**({"task_id": "merge", "plan": night.plan} | changes))
    return RunSummary.from_json(task.execute(night.context))


def completed(night: Any, **changes: Any) -> list[dict[str, Any]]:
    return [
        CompleteShardOperator(task_id="complete", shard=shard).execute(night.context)
        for shard in night.split(**changes)
    ]


def subjects(night: Any) -> list[str]:
    return pq.read_table(night.destination).column("subject").to_pylist()


class LazyStates(Sequence[Any]):
    """What Airflow gives for the output of a mapped task: a call to its API for every access."""

    def __init__(self, states: list[Any]) -> None:
        self._states = states
        self.calls = 0

    def __len__(self) -> int:
        raise AssertionError("the length is not needed")

    def __getitem__(self, key: Any) -> Any:
        self.calls += 1
        return self._states[key]


@pytest.mark.usefixtures("client")
class TestMerge:
    def test_writes_all_rows_in_order_and_returns_the_summary(self, night: Any) -> None:
        states = completed(night)
        summary = merge(night, states=states)
        assert (summary.rows, summary.succeeded, summary.shards, summary.requests) == (5, 5, 3, 5)
        assert subjects(night) == ["printer on fire", "no invoice", "cannot log in", "thank you", "refund"]

    def test_A2_an_empty_night_has_an_empty_output(self, night: Any) -> None:
        night.write()
        summary = merge(night, states=completed(night))
        assert (summary.rows, summary.shards) == (0, 0)
        assert pq.read_table(night.destination).num_rows == 0
        assert "subject" in pq.read_schema(night.destination / "part-00000.parquet").names

    @pytest.mark.parametrize("shape", ["list", "dict", "lazy"])
    def test_A8_one_shard_merges_as_many_do(self, night: Any, shape: str) -> None:
        states = completed(night, max_rows_per_shard=None)
        given = {"list": states, "dict": states[0], "lazy": LazyStates(states)}[shape]
        assert merge(night, states=given).requests == 5

    def test_a_lazy_sequence_costs_one_call(self, night: Any) -> None:
        lazy = LazyStates(completed(night))
        merge(night, states=lazy)
        assert lazy.calls == 1

    @pytest.mark.parametrize("states", [None, [], [None, None], [{"not": "a state"}]])
    def test_A9_missing_states_cost_only_their_numbers(self, night: Any, states: Any) -> None:
        completed(night)
        if states == [{"not": "a state"}]:
            with pytest.raises(AirflowFailException, match="a shard state from a complete task"):
                merge(night, states=states)
            return
        summary = merge(night, states=states)
        assert (summary.rows, summary.requests) == (5, 0)

    def test_states_of_another_kind_are_refused(self, night: Any) -> None:
        completed(night)
        with pytest.raises(AirflowFailException, match="give the output of the complete task"):
            merge(night, states="label.complete")

    def test_a_shard_that_is_not_finished_is_an_error(self, night: Any) -> None:
        first, *_ = night.split()
        CompleteShardOperator(task_id="complete", shard=first).execute(night.context)
        with pytest.raises(LLMStateError, match="shard"):
            merge(night)

    def test_I9_more_failed_rows_than_allowed_fail_the_task_after_writing(
        self, night: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        filtered = CallError(
            FailureKind.ROW, "content_filter", "filtered", row_status=RowStatus.CONTENT_FILTER
        )
        client = ScriptedClient([filtered])
        monkeypatch.setattr(LLMHook, "get_client", lambda _hook, concurrency: client)
        states = completed(night)
        # Merging again would find the same rows.
        with pytest.raises(AirflowFailException, match="1 of 5 rows"):
            merge(night, states=states, failure_threshold=0.1)
        assert len(subjects(night)) == 5
        assert merge(night, states=states, failure_threshold=0.2).succeeded == 4


class TestWithoutPlan:
    @pytest.mark.parametrize("plan", ["", None, "None"])
    def test_skips_itself_after_a_dry_run(self, night: Any, plan: Any) -> None:
        task = MergeShardsOperator(task_id="merge", plan="{{ none }}", outlets=[Asset("labels")])
        task.plan = plan
        with pytest.raises(AirflowSkipException, match="dry run"):
            task.execute(night.context)
        assert len(night.outlet_events) == 0
        assert not night.destination.exists()

    def test_a_plan_that_is_none_at_parse_time_is_a_mistake(self) -> None:
        with pytest.raises(LLMInputError, match="plan is None"):
            MergeShardsOperator(task_id="merge", plan=None)


@pytest.mark.usefixtures("client")
class TestAssetEvents:
    def test_every_outlet_gets_the_summary(self, night: Any) -> None:
        labels = Asset("labels", uri="s3://lake/labels")
        summary = merge(night, states=completed(night), outlets=[labels])
        assert night.outlet_events[labels].extra == summary.to_json()
        assert night.outlet_events[labels].extra["rows_by_status"] == {"success": 5}

    def test_an_alias_becomes_an_asset_at_the_destination(self, night: Any) -> None:
        alias = AssetAlias("labels")
        summary = merge(night, states=completed(night), outlets=[alias])
        (event,) = night.outlet_events[alias].asset_alias_events
        assert event.dest_asset_key.uri == summary.destination
        assert event.extra["rows"] == 5
