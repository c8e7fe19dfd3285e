"""The `airflow` command that starts quickly."""

from __future__ import annotations

import json
import subprocess
import sys

from airflow_llm_provider.preload import MODULES

#: In place of Airflow's own command, which the tests of a whole Airflow run: it says what it would find.
SHOW = """
import gc, json, sys, types
from airflow_llm_provider.local.airflow.launch import main
from airflow_llm_provider.preload import MODULES

def found():
    print(json.dumps([name for name in MODULES if name in sys.modules]), gc.get_threshold()[0])

sys.modules["airflow.__main__"] = types.SimpleNamespace(main=found)
main()
"""


class TestLaunch:
    def test_a_scheduler_has_loaded_what_its_tasks_need(self) -> None:
        command = [sys.executable, "-c", SHOW, "scheduler"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        assert done.stdout == f"{json.dumps(MODULES)} 50000\n"
