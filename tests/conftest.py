"""Keep every test away from the Airflow of whoever runs them."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING

import pytest

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


@pytest.fixture
def scripted_server() -> Iterator[ScriptedServer]:
    """What users know as `llm_server`, also where the plugin's entry point is not installed yet."""
    from airflow_llm_provider.testing.scripted_server import ScriptedServer

    with ScriptedServer() as server:
        yield server
