from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_llm_provider import CompleteShardOperator, MergeShardsOperator, ShardDatasetOperator
from airflow_llm_provider.links.run_page import RunPageLink

OPERATORS = [ShardDatasetOperator, CompleteShardOperator, MergeShardsOperator]


def link(**names: Any) -> str:
    ti_key: Any = SimpleNamespace(
        **({"dag_id": "d", "run_id": "r", "task_id": "g.merge", "map_index": -1} | names)
    )
    operator: Any = None
    return RunPageLink().get_link(operator, ti_key=ti_key)


class TestRunPageLink:
    @pytest.mark.parametrize("operator", OPERATORS)
    def test_every_task_has_it(self, operator: Any) -> None:
        assert [type(found) for found in operator.operator_extra_links] == [RunPageLink]

    def test_leads_to_the_page_below_the_base_url(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example/team/")
        assert link() == "https://airflow.example/team/llm/?dag_id=d&run_id=r&task_id=g.merge"
        assert link(map_index=3).endswith("&map_index=3")

    def test_names_are_quoted(self) -> None:
        assert "run_id=manual__2026-01-01T00%3A00%3A00%2B00%3A00%26x%3D1%23" in link(
            run_id="manual__2026-01-01T00:00:00+00:00&x=1#"
        )
