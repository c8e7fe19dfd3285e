"""One topology for all tests of a session: it takes longer to start than they take."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_llm_provider.testing.scripted_server import AccountLimits, EndpointOptions, ScriptedServer
from tests.compose.topology import Topology

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_llm_provider.local import AirflowClient

_DAGS = (
    Path(__file__).parents[1] / "system" / "dags" / "dataset_jobs.py",
    Path(__file__).parent / "dags" / "late.py",
)
API_KEY = "sk-planted-5b1f0c9d7e3a4f21"
#: What a person may set beside `docker compose up`, made short for a test.
_ENVIRONMENT = {
    "LLM_MODEL": "scripted",
    "LLM_API_KEY": API_KEY,
    "TASK_HEARTBEAT_TIMEOUT": "15",
    # Four shards need both workers.
    "WORKER_CONCURRENCY": "2",
}
#: How soon changes are seen; the defaults are right for a machine that has other things to do.
_HASTE = {
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
    "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "2",
    "AIRFLOW__DAG_PROCESSOR__BUNDLE_REFRESH_CHECK_INTERVAL": "1",
    "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "2",
    "AIRFLOW__DAG_PROCESSOR__PARSING_PROCESSES": "1",
}


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    """The model, which counts what it gets in any 4.5 seconds: five, less what a busy machine delays a request."""
    limits = AccountLimits(requests=10**6, tokens=10**9, window=4.5, reserve="usage", announce=False)
    with ScriptedServer(options=EndpointOptions(limits=limits)) as running:
        yield running


@pytest.fixture(scope="module")
def topology(server: ScriptedServer) -> Iterator[Topology]:
    """Everything in the file, running."""
    folder = Path(tempfile.mkdtemp(prefix="compose-"))
    try:
        running = Topology(folder, _ENVIRONMENT | {"LLM_BASE_URL": server.base_url}, _HASTE)
        for dag in _DAGS:
            shutil.copy(dag, running.dags)
        with running:
            yield running
    finally:
        if not os.environ.get("KEEP_SYSTEM_HOME"):
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def client(topology: Topology) -> Iterator[AirflowClient]:
    """REST client, logged in."""
    with topology.client() as connected:
        yield connected
