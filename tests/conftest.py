"""Keep every test away from the Airflow of whoever runs them."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from airflow_llm_provider.testing.scripted_server import ScriptedServer

# Before anything imports Airflow, which reads these once.
_home = tempfile.TemporaryDirectory(prefix="airflow-llm-tests-", ignore_cleanup_errors=True)
os.environ["AIRFLOW_HOME"] = _home.name
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
for _name in [
    name for name in os.environ if name.startswith(("AIRFLOW_CONN_", "AIRFLOW__DATABASE__", "OPENAI_"))
]:
    del os.environ[_name]


#: What two workers of pytest-xdist begin with, the longest first: folders and modules whose tests share a real Airflow.
_SHARED = (
    "tests/system/test_demo.py",
    "tests/system",
    "tests/compose/test_topology.py",
    "tests/dags",
    "tests/docs",
    "tests/distribution",
    "tests/jobs",
    "tests/limiters",
)
_ORDER = ("tests/system", "tests/compose/test_topology.py", "tests/system/test_demo.py", "tests/dags")


# First: xdist reads the groups in a hook of the same name.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep together what shares fixtures, and begin with what takes longest: only `make test` has two workers."""
    groups = {item: _group(item.path, item.config.rootpath) for item in items}
    for item, group in groups.items():
        item.add_marker(pytest.mark.xdist_group(group))
    ranks = {group: rank for rank, group in enumerate(_ORDER)}
    items.sort(key=lambda item: ranks.get(groups[item], len(ranks)))


def _group(path: Path, root: Path) -> str:
    """Return the folder whose fixtures a test shares, or its module."""
    module = path.relative_to(root).as_posix()
    return next((shared for shared in _SHARED if module.startswith(shared)), module)


@pytest.fixture
def scripted_server() -> Iterator[ScriptedServer]:
    """What users know as `llm_server`, also where the plugin's entry point is not installed yet."""
    from airflow_llm_provider.testing.scripted_server import ScriptedServer

    with ScriptedServer() as server:
        yield server
