"""Load beforehand what tasks need, in the process that they are forks of.

What the scheduler (LocalExecutor) or a Celery worker has loaded, a task need not load again: pyarrow, pandas and the HTTP
client take it more than a second of a core, several times its own work.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

__all__ = ["MODULES", "preload"]

#: Modules only, which a fork can share. A vocabulary's counter has threads of its own, which no fork takes along.
MODULES = (
    "airflow_llm_provider.clients.openai",
    "airflow_llm_provider.hooks.llm",
    "airflow_llm_provider.jobs",
    "airflow_llm_provider.task_groups.llm_map",
    "genai_prices.data",
    "pandas",
    "pyarrow.parquet",
    "tiktoken",
)
#: What numpy and pyarrow read when they are loaded, to start no threads: a process that forks should have one.
_NO_THREADS = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}


def preload() -> None:
    """Load what tasks need if this process is ``airflow scheduler`` or ``airflow celery worker``; do nothing in any other.

    For ``airflow_local_settings.py``, which every process of Airflow runs when it starts.
    """
    if sys.argv[1:2] != ["scheduler"] and sys.argv[1:3] != ["celery", "worker"]:
        return
    ours = _NO_THREADS.keys() - os.environ.keys()
    os.environ.update({name: _NO_THREADS[name] for name in ours})
    for name in MODULES:
        import_module(name)
    # Our choice, not that of programs which a task starts.
    for name in ours:
        del os.environ[name]
