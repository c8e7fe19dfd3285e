"""Keep every test away from the Airflow of whoever runs them."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_llm_provider.testing.scripted_server import ScriptedServer

# Before anything imports Airflow, which reads these once.
_home = tempfile.TemporaryDirectory(prefix="airflow-llm-tests-", ignore_cleanup_errors=True)
os.environ["AIRFLOW_HOME"] = _home.name
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
for _name in [
    name for name in os.environ if name.startswith(("AIRFLOW_CONN_", "AIRFLOW__DATABASE__", "OPENAI_"))
]:
    del os.environ[_name]

# The same examples in every run and nothing that is timed: a change is judged by what it does, not by how busy the machine
# is. `make soak` looks for new ones. A fixture may serve all examples of a test.
settings.register_profile(
    "same",
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile("new", settings.get_profile("same"), derandomize=False)
settings.load_profile("same")


#: What takes longest, a real Airflow each; the two workers begin with it.
_LONGEST = ("tests/system/test_demo.py", "tests/system", "tests/compose/test_topology.py", "tests/dags")
#: Folders and modules whose tests share what is slow to start. The first that fits counts.
_SHARED = (*_LONGEST, "tests/docs", "tests/distribution", "tests/jobs", "tests/limiters")


class _InGroups(LoadScopeScheduling):  # type: ignore[misc]
    """Keeps together what shares fixtures: a folder of tests, else a module."""

    def _split_scope(self, nodeid: str) -> str:
        return _group(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _InGroups:
    """Say how the workers of `make test` share the tests: by groups, in their order."""
    return _InGroups(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest."""
    ranks = {group: rank for rank, group in enumerate(_LONGEST)}
    items.sort(key=lambda item: ranks.get(_group(item.nodeid), len(ranks)))


def _group(nodeid: str) -> str:
    module = nodeid.partition("::")[0]
    return next((shared for shared in _SHARED if module.startswith(shared)), module)


@pytest.fixture
def scripted_server() -> Iterator[ScriptedServer]:
    """What users know as `llm_server`, also where the plugin's entry point is not installed yet."""
    from airflow_llm_provider.testing.scripted_server import ScriptedServer

    with ScriptedServer() as server:
        yield server
