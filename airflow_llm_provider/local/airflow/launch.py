"""The `airflow` command, made to start quickly, and its tasks too; what it does is Airflow's own."""

from __future__ import annotations

import gc

from airflow_llm_provider.preload import preload

__all__ = ["main"]

# Airflow's processes make hundreds of thousands of objects that stay. Going through all of them after every seven
# hundred new ones, as Python does by default, is a third of what their start takes.
_NEW_OBJECTS = 50_000


def main() -> None:
    """Be the `airflow` command."""
    gc.set_threshold(_NEW_OBJECTS)
    from airflow.__main__ import main as airflow  # noqa: PLC0415 -- Airflow wants to be loaded by this first

    preload()
    airflow()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
