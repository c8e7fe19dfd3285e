"""Real Airflow and a small real model on this machine, for the demo, for trying things out and for system tests.

Everything here binds to 127.0.0.1, lives in one folder and stops completely. Nothing here belongs in production.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_llm_provider.local.airflow.local_airflow import LocalAirflow
    from airflow_llm_provider.local.demo.model_server import ModelServer
    from airflow_llm_provider.local.rest import AirflowClient

__all__ = ["AirflowClient", "LocalAirflow", "ModelServer"]

_HOMES = {
    "AirflowClient": "airflow_llm_provider.local.rest",
    "LocalAirflow": "airflow_llm_provider.local.airflow.local_airflow",
    "ModelServer": "airflow_llm_provider.local.demo.model_server",
}


def __getattr__(name: str) -> object:
    """Import on first use, so that the supervising process starts without the libraries of the others."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
