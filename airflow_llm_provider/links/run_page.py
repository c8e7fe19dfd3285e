"""The link to the page of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlencode

from airflow.sdk import BaseOperatorLink

from airflow_llm_provider.hooks.compat import airflow_option

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

#: Where the API server serves the page, under its ``base_url``.
PAGE_PREFIX = "/llm"


class RunPageLink(BaseOperatorLink):
    """To the page that shows rows, cost, output and shards of the task's run."""

    name = "Run summary"

    @property
    def xcom_key(self) -> str:
        """XCom key under which Airflow keeps the link once the task has ended."""
        return "_link_llm_run"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002 -- the same for all
        """Return the page's address; called by Airflow in the worker, when the task has ended."""
        names = {"dag_id": ti_key.dag_id, "run_id": ti_key.run_id, "task_id": ti_key.task_id}
        if ti_key.map_index is not None and ti_key.map_index >= 0:
            names["map_index"] = str(ti_key.map_index)
        base = airflow_option("api", "base_url", fallback="/").rstrip("/")
        return f"{base}{PAGE_PREFIX}/?{urlencode(names)}"
