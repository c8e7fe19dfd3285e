"""Task instances, their XComs and logs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_llm_provider.local.errors import ApiError
from airflow_llm_provider.local.rest.base import NOT_FOUND, Calls, quoted, run_path

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["TaskCalls", "TaskInstance"]


@dataclass(frozen=True, kw_only=True)
class TaskInstance:
    """One task instance as Airflow shows it.

    :param task_id: with the ids of its groups.
    :param map_index: -1 when it is not mapped.
    :param state: None before it is scheduled.
    :param label: what the grid shows for a mapped instance.
    :param try_number: 1 for the first try.
    :param pid: process of the last try, on the worker.
    """

    task_id: str
    map_index: int
    state: str | None
    label: str | None
    try_number: int
    pid: int | None


class TaskCalls(Calls):
    """Calls about task instances."""

    def task_instances(self, dag_id: str, run_id: str, task_id: str | None = None) -> list[TaskInstance]:
        """List the task instances of a run, mapped ones in order.

        :param dag_id: the DAG.
        :param run_id: the run.
        :param task_id: only this task's.
        """
        found = self._http.pages(
            f"/api/v2{run_path(dag_id, run_id)}/taskInstances",
            "task_instances",
            task_id=task_id,
            order_by="id",
        )
        instances = [
            TaskInstance(
                task_id=ti["task_id"],
                map_index=ti["map_index"],
                state=ti["state"],
                label=ti["rendered_map_index"],
                try_number=ti["try_number"],
                pid=ti["pid"],
            )
            for ti in found
        ]
        wanted = [ti for ti in instances if task_id is None or ti.task_id == task_id]
        return sorted(wanted, key=lambda ti: (ti.task_id, ti.map_index))

    def clear(
        self,
        dag_id: str,
        run_id: str,
        task_ids: Sequence[str | tuple[str, int]] | None = None,
        *,
        only_failed: bool = False,
        include_downstream: bool = False,
        include_upstream: bool = False,
    ) -> list[tuple[str, int]]:
        """Clear task instances and return which ones were cleared.

        :param dag_id: the DAG.
        :param run_id: the run.
        :param task_ids: task ids, or pairs of task id and map index; None is all.
        :param only_failed: leave the instances that succeeded.
        :param include_downstream: also what depends on them.
        :param include_upstream: also what they depend on.
        """
        body = {
            "dry_run": False,
            "dag_run_id": run_id,
            "only_failed": only_failed,
            "include_downstream": include_downstream,
            "include_upstream": include_upstream,
        }
        if task_ids is not None:
            body["task_ids"] = [list(task) if isinstance(task, tuple) else task for task in task_ids]
        answer = self.call("POST", f"/dags/{quoted(dag_id)}/clearTaskInstances", body=body)
        return [(ti["task_id"], ti["map_index"]) for ti in answer["task_instances"]]

    def xcom(
        self, dag_id: str, run_id: str, task_id: str, *, key: str = "return_value", map_index: int = -1
    ) -> Any:
        """Return an XCom's value, None when there is none.

        :param dag_id: the DAG.
        :param run_id: the run.
        :param task_id: the task.
        :param key: the XCom's key.
        :param map_index: -1 for a task that is not mapped.
        """
        path = f"{run_path(dag_id, run_id)}/taskInstances/{quoted(task_id)}/xcomEntries/{quoted(key)}"
        try:
            value = self.call("GET", path, map_index=map_index)["value"]
        except ApiError as error:
            if error.status == NOT_FOUND:
                return None
            raise
        try:
            # Some versions of Airflow answer with the JSON text that they keep, others with its value.
            return json.loads(value) if isinstance(value, str) else value
        except ValueError:
            return value

    def log(self, dag_id: str, run_id: str, task_id: str, *, try_number: int = 1, map_index: int = -1) -> str:
        """Return a task's log, one JSON record per line.

        :param dag_id: the DAG.
        :param run_id: the run.
        :param task_id: the task.
        :param try_number: 1 for the first try.
        :param map_index: -1 for a task that is not mapped.
        """
        return str(
            self._http.call(
                "GET",
                f"/api/v2{run_path(dag_id, run_id)}/taskInstances/{quoted(task_id)}/logs/{try_number}",
                params={"map_index": map_index, "full_content": "true"},
                accept="application/x-ndjson",
            )
        )
