"""The `airflow` command, made to start quickly; what it does is Airflow's own.

A task is a fork of the scheduler. What the scheduler has loaded, a task need not load again: pyarrow, pandas and the HTTP
client take it more than a second of a core, several times its own work.
"""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module

__all__ = ["LOADED", "main"]

#: Modules only, which a fork can share. A vocabulary's counter has threads of its own, which no fork takes along.
LOADED = (
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
# Airflow's processes make hundreds of thousands of objects that stay. Going through all of them after every seven
# hundred new ones, as Python does by default, is a third of what their start takes.
_NEW_OBJECTS = 50_000


def main() -> None:
    """Be the `airflow` command."""
    gc.set_threshold(_NEW_OBJECTS)
    from airflow.__main__ import main as airflow  # noqa: PLC0415 -- Airflow wants to be loaded by this first

    if sys.argv[1:2] == ["scheduler"]:
        _load()
    airflow()  # type: ignore[no-untyped-call]


def _load() -> None:
    ours = _NO_THREADS.keys() - os.environ.keys()
    os.environ.update({name: _NO_THREADS[name] for name in ours})
    for name in LOADED:
        import_module(name)
    # Our choice, not that of programs which a task starts.
    for name in ours:
        del os.environ[name]


if __name__ == "__main__":
    main()
