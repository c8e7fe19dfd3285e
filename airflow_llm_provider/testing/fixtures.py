"""Pytest fixtures. Turn them on with ``pytest_plugins = ["airflow_llm_provider.testing.fixtures"]``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_llm_provider.testing.scripted_server import ScriptedServer

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def scripted_server() -> Iterator[ScriptedServer]:
    """Run a model server in a thread; ``scripted_server.script(Rule(...))`` gives it a script."""
    with ScriptedServer() as server:
        yield server
