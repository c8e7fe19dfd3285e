"""What a scenario plays on: a dataset, a model server that remembers every request, runs of a DAG over both."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_llm_provider.dataset import read_results
from airflow_llm_provider.local.rest import wait_until
from airflow_llm_provider.testing.scripted_server import ScriptedServer
from airflow_llm_provider.xcom import RunSummary, ShardState
from tests.system.watch import POLL, WATCHES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import datetime
    from pathlib import Path

    from airflow_llm_provider.local import AirflowClient, LocalAirflow
    from airflow_llm_provider.local.rest import TaskInstance
    from airflow_llm_provider.testing.scripted_server import RecordedRequest

    Scene = Callable[["Stage"], Any]

#: A scenario waits for real processes, which may be slow on a busy machine.
SYSTEM = [pytest.mark.system, pytest.mark.timeout(1500)]
#: Planted in every connection and every row; neither may be found where it does not belong.
API_KEY = "sk-planted-5b1f0c9d7e3a4f21"
ROW_TEXT = "confidential-4e8d21"

_SECONDS = 1200.0
_ENDED = {"success", "failed"}


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run of one DAG.

    :param group: task group of the three tasks.
    """

    client: AirflowClient
    dag_id: str
    run_id: str
    group: str = "ask"

    def end(self) -> str:
        """Wait until the run has ended, and return how."""
        wait_until(
            self.has_ended,
            timeout=_SECONDS,
            what=f"run {self.run_id!r} of {self.dag_id!r} has not ended",
            explain=lambda: f": {self.states()}",
            poll=POLL,
        )
        return self.state()

    def has_ended(self) -> bool:
        """Whether it has ended."""
        watch = WATCHES[self.client.url]
        return watch.may_have_ended(self.client, self.dag_id, self.run_id) and self.state() in _ENDED

    def state(self) -> str:
        """The run's state now."""
        return self.client.run_state(self.dag_id, self.run_id)

    def tasks(self) -> dict[tuple[str, int], TaskInstance]:
        """Every task instance by name within the group and map index."""
        found = self.client.task_instances(self.dag_id, self.run_id)
        return {(ti.task_id.removeprefix(f"{self.group}."), ti.map_index): ti for ti in found}

    def states(self) -> dict[tuple[str, int], str | None]:
        """States of all task instances."""
        return {key: ti.state for key, ti in self.tasks().items()}

    def shard(self, index: int = 0) -> TaskInstance:
        """The task instance of one shard."""
        return self.tasks()["complete", index]

    def clear(self, task: str, index: int | None = None, *, downstream: bool = True) -> set[tuple[str, int]]:
        """Clear one task, or one instance of it, and return what was cleared."""
        task_id = f"{self.group}.{task}"
        cleared = self.client.clear(
            self.dag_id,
            self.run_id,
            [task_id if index is None else (task_id, index)],
            include_downstream=downstream,
        )
        return {(cleared_id.removeprefix(f"{self.group}."), map_index) for cleared_id, map_index in cleared}

    def clear_all(self) -> None:
        """Clear the whole run."""
        self.client.clear_run(self.dag_id, self.run_id)

    def xcom(self, task: str, *, key: str = "return_value", index: int = -1) -> Any:
        """An XCom's value, None when there is none."""
        return self.client.xcom(self.dag_id, self.run_id, f"{self.group}.{task}", key=key, map_index=index)

    def shard_state(self, index: int = 0, *, failed: bool = False) -> ShardState:
        """What a shard's task left in XCom."""
        value = self.xcom("complete", key="shard_state" if failed else "return_value", index=index)
        return ShardState.from_json(value)

    def summary(self) -> RunSummary:
        """What the merge left in XCom."""
        return RunSummary.from_json(self.xcom("merge"))

    def log(self, task: str, *, index: int = -1, try_number: int = 1) -> str:
        """A task's log."""
        return self.client.log(
            self.dag_id, self.run_id, f"{self.group}.{task}", map_index=index, try_number=try_number
        )

    def traces(self) -> dict[str, str]:
        """Everything that a person can read of the run: its tasks with their rendered fields, XComs and logs."""
        path = f"/dags/{self.dag_id}/dagRuns/{self.run_id}"
        instances = self.client.call("GET", f"{path}/taskInstances")["task_instances"]
        found = {"task instances": json.dumps(instances)}
        for entry in self.client.call("GET", f"{path}/taskInstances/~/xcomEntries")["xcom_entries"]:
            name, task_id, index = entry["key"], entry["task_id"], entry["map_index"]
            value = self.client.xcom(self.dag_id, self.run_id, task_id, key=name, map_index=index)
            found[f"XCom {name} of {task_id}[{index}]"] = json.dumps(value)
        for ti in instances:
            for number in range(1, ti["try_number"] + 1):
                log = self.client.log(
                    self.dag_id, self.run_id, ti["task_id"], map_index=ti["map_index"], try_number=number
                )
                found[f"log {number} of {ti['task_id']}[{ti['map_index']}]"] = log
        return found


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One scenario's own folder, model server and connection.

    :param name: of the scenario, also the id of its connection.
    """

    name: str
    airflow: LocalAirflow
    client: AirflowClient
    folder: Path
    server: ScriptedServer

    @property
    def source(self) -> Path:
        """The dataset."""
        return self.folder / "rows.parquet"

    @property
    def destination(self) -> Path:
        """Folder of the output."""
        return self.folder / "out"

    def write(self, texts: Sequence[str]) -> None:
        """Write the dataset: a row for each text."""
        table = pa.table(
            {"text": pa.array(texts, pa.string()), "id": pa.array(range(len(texts)), pa.int64())}
        )
        pq.write_table(table, self.source)

    def run(self, dag_id: str, **params: Any) -> Run:
        """Trigger a run over the dataset, as the UI's form does."""
        paths = {"source": str(self.source), "destination": f"file://{self.destination}"}
        return self.trigger(dag_id, params={**paths, "conn_id": self.name, **params})

    def trigger(
        self,
        dag_id: str,
        *,
        params: dict[str, Any] | None = None,
        logical_date: datetime | None = None,
        group: str = "ask",
    ) -> Run:
        """Trigger a run of any DAG."""
        run_id = self.client.trigger(dag_id, params=params, logical_date=logical_date)
        return Run(client=self.client, dag_id=dag_id, run_id=run_id, group=group)

    def wait_for_requests(self, run: Run, *, answered: int, in_flight: int) -> None:
        """Wait until so many requests are answered and so many more are held by the server."""

        def there() -> bool:
            stats = self.server.stats()
            if stats["answered"] == answered and stats["in_flight"] == in_flight:
                return True
            # Also ends the waiting when Airflow goes before its time.
            assert not run.has_ended(), f"{self.name} has ended: {stats}"
            return False

        wait_until(
            there,
            timeout=_SECONDS,
            what=f"{self.name}: not {answered} requests answered and {in_flight} in flight",
            explain=lambda: f": {self.server.stats()}",
            poll=POLL,
        )

    def heal(self) -> list[RecordedRequest]:
        """Let the server answer everything from now on, and return what it saw until now."""
        seen = self.server.requests
        self.server.script()
        return seen

    def output(self) -> list[dict[str, Any]]:
        """The merged output."""
        return list(read_results(str(self.destination)).to_pylist())

    def results(self) -> dict[str, bytes]:
        """Content of every finished shard's file."""
        files = (self.destination / "_llm" / "results").iterdir()
        return {path.name: path.read_bytes() for path in files}


def begins_with(prologue: Callable[[LocalAirflow], None]) -> Callable[[Scene], Scene]:
    """Make a scenario begin with something that wants Airflow for itself, before all scenarios are played at once."""

    def mark(scene: Scene) -> Scene:
        scene.prologue = prologue
        return scene

    return mark


def rows(*numbers: int) -> list[str]:
    """Texts of rows, each of which holds something that must not leak."""
    return [f"row {number:02d} {ROW_TEXT}" for number in numbers]


def asked(requests: Sequence[RecordedRequest]) -> list[str]:
    """Texts of the rows that were asked for, in order of arrival."""
    return [request.prompt.removeprefix("Ticket: ") for request in requests]


def answered(requests: Sequence[RecordedRequest]) -> list[str]:
    """Texts of the rows that got an answer."""
    return asked([request for request in requests if request.answered])


def echoes(texts: Sequence[str]) -> list[str]:
    """Answers of the server."""
    return [f"echo: Ticket: {text}" for text in texts]


def leaks(traces: Mapping[str, str]) -> list[str]:
    """Names of the traces in which something planted is found."""
    return [name for name, text in traces.items() if API_KEY in text or ROW_TEXT in text]


@contextmanager
def staged(name: str, airflow: LocalAirflow, home: Path) -> Iterator[Stage]:
    """Set a stage up, with a connection whose key must not leak."""
    folder = home / name
    folder.mkdir()
    with ScriptedServer() as server, airflow.client(timeout=120) as client:
        client.put_connection(name, conn_type="llm", host=server.base_url, password=API_KEY)
        yield Stage(name=name, airflow=airflow, client=client, folder=folder, server=server)
