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
# Airflow's processes make hundreds of thousands of objects that stay. Going through all of them after every seven
# hundred new ones, as Python does by default, is a third of what their start takes.
_NEW_OBJECTS = 50_000


def main(arguments: list[str]) -> None:
    """Be the `airflow` command.

    :param arguments: its words.
    """
    gc.set_threshold(_NEW_OBJECTS)
    from airflow.__main__ import main as airflow  # noqa: PLC0415 -- Airflow wants to be loaded by this first

    if arguments[:1] == ["scheduler"]:
        # Read when numpy is loaded: a process that forks should have one thread.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        for name in LOADED:
            import_module(name)
    airflow()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main(sys.argv[1:])
