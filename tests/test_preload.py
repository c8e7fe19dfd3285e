"""What a process that tasks are forked from loads beforehand, by the file with which Airflow lets one do so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from airflow_llm_provider.preload import MODULES

if TYPE_CHECKING:
    from pathlib import Path

#: As the `airflow` command starts, up to what it would do.
SHOW = """
import json, os, sys

import airflow.__main__
import psutil
from airflow_llm_provider.preload import MODULES

found = {
    "loaded": [name for name in MODULES if name in sys.modules],
    "threads": psutil.Process().num_threads(),
    "environment": sorted({"OPENBLAS_NUM_THREADS", "JE_ARROW_MALLOC_CONF"} & os.environ.keys()),
}
print(json.dumps(found))
"""


def found_by(home: Path, *words: str) -> dict[str, Any]:
    settings = home / "config" / "airflow_local_settings.py"
    settings.parent.mkdir()
    settings.write_text("from airflow_llm_provider.preload import preload\n\npreload()\n", encoding="utf-8")
    env = os.environ | {"AIRFLOW_HOME": str(home)}
    command = [sys.executable, "-c", SHOW, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, env=env)
    return json.loads(done.stdout.splitlines()[-1])


class TestPreload:
    def test_what_forks_tasks_has_loaded_what_they_need_and_is_safe_to_fork(self, tmp_path: Path) -> None:
        """A thread would be missing in the fork, with whatever lock it held."""
        assert found_by(tmp_path, "celery", "worker") == {
            "loaded": list(MODULES),
            "threads": 1,
            "environment": [],
        }

    def test_what_runs_no_task_loads_nothing_for_it(self, tmp_path: Path) -> None:
        assert found_by(tmp_path, "celery", "flower")["loaded"] == []
