"""One real Airflow for all system tests: starting it takes longer than most of them."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from airflow_llm_provider.local import AirflowClient, LocalAirflow
from airflow_llm_provider.starter.environment import bundles
from tests.system.scenes import PARTITIONS, facts, scenes
from tests.system.versioned_bundle import publish

__all__ = ["facts", "scenes"]

#: Airflow before 3.2 has no runs of partitions to test.
collect_ignore = [] if PARTITIONS else ["test_partitions.py"]


@pytest.fixture(scope="session")
def system_home() -> Iterator[Path]:
    """A folder with a space in its name, for everything the session's Airflow reads and writes."""
    home = Path(tempfile.mkdtemp(prefix="airflow llm "))
    yield home
    if not os.environ.get("KEEP_SYSTEM_HOME"):
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def dags_folder(system_home: Path) -> Path:
    """The folder of DAG files."""
    folder = system_home / "dags"
    folder.mkdir()
    return folder


@pytest.fixture(scope="session")
def airflow(system_home: Path, dags_folder: Path) -> Iterator[LocalAirflow]:
    """A running Airflow over `dags_folder` and a versioned bundle; DAG files can import what lies in this repository."""
    repository = Path(__file__).parents[2]
    path = os.pathsep.join(part for part in (str(repository), os.environ.get("PYTHONPATH", "")) if part)
    ways = Path(__file__).parent / "dags" / "ways.py"
    publish(system_home / "versions", "1", ways.name, ways.read_text(encoding="utf-8"))
    versions = {
        "name": "versions",
        "classpath": "tests.system.versioned_bundle.VersionedBundle",
        "kwargs": {"root": str(system_home / "versions"), "refresh_interval": 2},
    }
    env = {
        "PYTHONPATH": path,
        "AIRFLOW__LLM_EXAMPLES__DATA": f"file://{system_home / 'data'}",
        "AIRFLOW__LLM_EXAMPLES__MODEL": "scripted",
        # Files that have not changed are not parsed again; a changed one does not wait for this.
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "300",
        # Against hanging alone: a busy machine takes longer than Airflow's half a minute, and loses the callbacks.
        "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "300",
        "AIRFLOW__DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": "600",
        # Half of the calls that the API server gets would be heartbeats, of tasks of which one is cleared in all.
        "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "5",
        # The scheduler looks at every run of every scenario each time.
        "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "1",
        # Each beat is a write, for which SQLite keeps all others waiting.
        "AIRFLOW__SCHEDULER__JOB_HEARTBEAT_SEC": "5",
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps([*bundles([dags_folder], 2), versions]),
    }
    home = system_home / "airflow"
    shutil.copytree(Path(__file__).parent / "plugins", home / "plugins")
    # The triggerer is for the callback of a deadline.
    with LocalAirflow(home, dags_folder, env=env, parallelism=6, triggerer=True) as running:
        yield running


@pytest.fixture(scope="session")
def client(airflow: LocalAirflow) -> Iterator[AirflowClient]:
    """REST client of the session's Airflow."""
    with airflow.client() as connected:
        yield connected


AddDag = Callable[[str, str], str]


@pytest.fixture(scope="session")
def add_dag(client: AirflowClient, dags_folder: Path) -> AddDag:
    """Write a DAG file, wait until it is parsed, unpause it and return its id: `add_dag("my_dag", source)`.

    Call it again with other source to change a DAG; it waits until the new version is parsed.
    """

    def add(dag_id: str, source: str) -> str:
        before = datetime.now(UTC)
        path = dags_folder / f"{dag_id}.py"
        temporary = path.with_suffix(".tmp")
        temporary.write_text(source, encoding="utf-8")
        temporary.replace(path)
        client.wait_for_dag(dag_id, timeout=300, after=before)
        client.unpause(dag_id)
        return dag_id

    return add
