"""The `airflow` command that starts quickly."""

from __future__ import annotations

import json
import subprocess
import sys

from airflow_llm_provider.local.launch import LOADED

#: In place of Airflow's own command, which the tests of a whole Airflow run: it says what it would find.
SHOW = """
import gc, json, psutil, sys, types
from airflow_llm_provider.local.launch import LOADED, main

def found():
    print(json.dumps([name for name in LOADED if name in sys.modules]), gc.get_threshold()[0], psutil.Process().num_threads())

sys.modules["airflow.__main__"] = types.SimpleNamespace(main=found)
main()
"""


def found_by(component: str) -> str:
    command = [sys.executable, "-c", SHOW, component]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


class TestLaunch:
    def test_a_scheduler_has_loaded_what_its_tasks_need_and_is_safe_to_fork(self) -> None:
        """A thread would be missing in the fork, with whatever lock it held."""
        assert found_by("scheduler") == f"{json.dumps(LOADED)} 50000 1\n"

    def test_what_runs_no_task_loads_nothing_for_it(self) -> None:
        assert found_by("api-server") == "[] 50000 1\n"
