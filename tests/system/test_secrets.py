"""Nothing that was planted in connections and rows is found in Airflow's own files, whatever was played."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.system.stage import API_KEY, ROW_TEXT, SYSTEM

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Future
    from pathlib import Path

    from airflow_llm_provider.local import LocalAirflow

pytestmark = SYSTEM


@pytest.fixture
def airflow_files(airflow: LocalAirflow, scenes: Mapping[Any, Future[Any]]) -> list[Path]:
    """Database and logs, once everything has been played."""
    if not scenes:
        pytest.skip("no scenario was selected together with this test")
    for scene in scenes.values():
        scene.exception(timeout=1300)
    return [path for path in airflow.home.rglob("*") if path.is_file()]


class TestPlantedSecrets:
    @pytest.mark.parametrize("planted", [API_KEY, ROW_TEXT])
    def test_are_in_no_log_and_not_in_the_database(self, airflow_files: list[Path], planted: str) -> None:
        names = {path.name for path in airflow_files}
        assert {"airflow.db", "scheduler.log", "attempt=1.log"} <= names
        assert [path for path in airflow_files if planted.encode() in path.read_bytes()] == []
