"""The pytest plugin: fixtures, there wherever this package is installed, and free of cost until a test asks for one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_llm_provider.testing.dag_runs import AirflowProcess, DagRunner
    from airflow_llm_provider.testing.scripted_server import ScriptedServer

# pytest imports this module in every session of every project: whatever is more than pytest is imported in a fixture.


@pytest.fixture
def llm_server() -> Iterator[ScriptedServer]:
    """Run a model server in a thread; ``llm_server.script(Rule(...))`` gives it a script."""
    from airflow_llm_provider.testing.scripted_server import ScriptedServer  # noqa: PLC0415 -- see above

    with ScriptedServer() as server:
        yield server


@pytest.fixture(scope="session")
def llm_airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AirflowProcess]:
    """Start a process with an Airflow of its own: a new home and database, nothing of the user's."""
    from airflow_llm_provider.testing.dag_runs import AirflowProcess  # noqa: PLC0415 -- see above

    with AirflowProcess(tmp_path_factory.mktemp("airflow")) as process:
        yield process


@pytest.fixture
def run_llm_dag(llm_airflow: AirflowProcess, llm_server: ScriptedServer) -> DagRunner:
    """Run a DAG file by ``dag.test()`` against ``llm_server``: see :class:`DagRunner`."""
    from airflow_llm_provider.testing.dag_runs import DagRunner  # noqa: PLC0415 -- see above

    return DagRunner(llm_airflow, llm_server)
