"""The `airflow` command that starts quickly."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version

import pytest

from airflow_llm_provider.local.launch import LOADED

#: Airflow's own command is left out: it says what it would find.
SHOW = """
import airflow.__main__, gc, json, psutil, sys
from airflow_llm_provider.local.launch import LOADED, main

airflow.__main__.main = lambda: print(
    json.dumps([name for name in LOADED if name in sys.modules]), gc.get_threshold()[0], psutil.Process().num_threads()
)
main()
"""


def said(*words: str) -> str:
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True, timeout=120)
    return done.stdout.splitlines()[-1]


class TestLaunch:
    def test_it_is_airflows_command(self) -> None:
        assert said("-m", "airflow_llm_provider.local.launch", "version") == version("apache-airflow-core")

    def test_a_scheduler_has_loaded_what_its_tasks_need_and_is_safe_to_fork(self) -> None:
        """A thread would be missing in the fork, with whatever lock it held."""
        assert said("-c", SHOW, "scheduler") == f"{json.dumps(LOADED)} 50000 1"

    @pytest.mark.parametrize("component", ["api-server", "dag-processor", "triggerer"])
    def test_what_runs_no_task_loads_nothing_for_it(self, component: str) -> None:
        assert said("-c", SHOW, component) == "[] 50000 1"
