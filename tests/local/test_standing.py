"""What `up` leaves running, and what it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import pytest

from airflow_llm_provider.local.demo import standing
from airflow_llm_provider.local.demo.home import Home
from airflow_llm_provider.starter.endpoint import ModelEndpoint

if TYPE_CHECKING:
    from pathlib import Path

GIVEN = ModelEndpoint(base_url="http://127.0.0.1:9/v1", model="m")


class FakeAirflow:
    """Says what was done with it; its DAGs are parsed, or something happens first."""

    url = "http://127.0.0.1:9"

    def __init__(self, meanwhile: BaseException | None) -> None:
        self.meanwhile = meanwhile
        self.done: list[str] = []

    def __call__(self, *_: Any, **__: Any) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def client(self) -> Self:
        return self

    def start(self) -> None:
        self.done.append("start")

    def stop(self) -> None:
        self.done.append("stop")

    def put_pool(self, *_: Any, **__: Any) -> None:
        pass

    def put_connection(self, *_: Any, **__: Any) -> None:
        pass

    def wait_for_dag(self, _: str) -> None:
        if self.meanwhile is not None:
            raise self.meanwhile


class TestBringUp:
    @pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("no DAG")])
    def test_what_is_interrupted_before_the_end_leaves_nothing_running(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
    ) -> None:
        airflow = FakeAirflow(error)
        monkeypatch.setattr(standing, "LocalAirflow", airflow)
        with pytest.raises(type(error)):
            standing.bring_up(Home(tmp_path), tmp_path, GIVEN)
        assert airflow.done == ["start", "stop"]

    def test_what_came_up_is_left_running(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        airflow = FakeAirflow(None)
        monkeypatch.setattr(standing, "LocalAirflow", airflow)
        standing.bring_up(Home(tmp_path), tmp_path, GIVEN)
        assert airflow.done == ["start"]
