from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.execution_time.context import OutletEventAccessors

from airflow_llm_provider import CompletionSpec, LLMHook, ShardDatasetOperator
from airflow_llm_provider.testing.scripted_client import ScriptedClient

if TYPE_CHECKING:
    from pathlib import Path


class RecordedTaskInstance:
    """A task instance that keeps XComs as Airflow does: as JSON."""

    def __init__(self) -> None:
        self.xcoms: dict[str, Any] = {}
        self.push_error: Exception | None = None
        self.dag_id = "nightly"
        self.run_id = "scheduled__2026-11-30"
        self.task_id = "label.complete"
        self.try_number = 1
        self.map_index = 0

    def get_first_reschedule_date(self, context: Any) -> None:
        return None

    def xcom_push(self, key: str, value: Any) -> None:
        if self.push_error is not None:
            raise self.push_error
        self.xcoms[key] = json.loads(json.dumps(value))


class Night:
    """One run's dataset, and its three operators run in turn, without Airflow around them."""

    def __init__(self, folder: Path) -> None:
        self.source = folder / "tickets.csv"
        self.destination = folder / "labels"
        self.ti = RecordedTaskInstance()
        self.outlet_events = OutletEventAccessors()

    @property
    def context(self) -> Any:
        return {"ti": self.ti, "outlet_events": self.outlet_events, "params": {}}

    def write(self, *subjects: str) -> None:
        self.source.write_text("subject\n" + "".join(f"{subject}\n" for subject in subjects))

    def splitter(self, **changes: Any) -> ShardDatasetOperator:
        arguments: dict[str, Any] = {
            "task_id": "split",
            "spec": CompletionSpec(model="gpt-4o-mini", prompt="Ticket: {{ subject }}", max_output_tokens=16),
            "source": str(self.source),
            "destination": str(self.destination),
            "max_rows_per_shard": 2,
        }
        return ShardDatasetOperator(**(arguments | changes))

    def split(self, **changes: Any) -> list[dict[str, Any]]:
        return self.splitter(**changes).execute(self.context)

    @property
    def plan(self) -> str:
        return str(self.ti.xcoms["plan"])


@pytest.fixture(autouse=True)
def connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_LLM_DEFAULT", '{"conn_type": "llm", "host": "http://127.0.0.1:1/v1"}')
    # No test finds the limits that another one has learned.
    monkeypatch.setenv("AIRFLOW__LLM__LIMITER_URL", "memory://")


@pytest.fixture
def night(tmp_path: Path) -> Night:
    found = Night(tmp_path)
    found.write("printer on fire", "no invoice", "cannot log in", "thank you", "refund")
    return found


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> ScriptedClient:
    """The client of every shard, which answers ``ok``."""
    scripted = ScriptedClient()
    monkeypatch.setattr(LLMHook, "get_client", lambda _hook, concurrency: scripted)
    return scripted
