"""Airflow's REST API, as far as a demo and system tests need it. The same calls work on Airflow 3.1 and 3.3."""

from __future__ import annotations

from airflow_llm_provider.local.rest.base import wait_until
from airflow_llm_provider.local.rest.dags import DagCalls
from airflow_llm_provider.local.rest.objects import ObjectCalls
from airflow_llm_provider.local.rest.tasks import TaskInstance

__all__ = ["AirflowClient", "TaskInstance", "wait_until"]


class AirflowClient(DagCalls, ObjectCalls):
    """Calls a local Airflow; use it as a context manager or `close` it.

    :param url: where the API server answers.
    :param timeout: seconds for one call.
    :param transport: how requests leave, for tests; None is the network.
    :param explain: asked why nobody takes a connection; its words end the error.
    """
