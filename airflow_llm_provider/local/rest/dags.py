"""DAGs and runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_llm_provider.local.errors import ApiError
from airflow_llm_provider.local.rest.base import NOT_FOUND, POLL, quoted, run_path, wait_until
from airflow_llm_provider.local.rest.tasks import TaskCalls

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

__all__ = ["DagCalls"]

_FINISHED = frozenset({"success", "failed"})


class DagCalls(TaskCalls):
    """Calls about DAGs and their runs."""

    def health(self) -> dict[str, Any]:
        """Return the state of every component."""
        health: dict[str, Any] = self.call("GET", "/monitor/health")
        return health

    def execution_health(self) -> dict[str, Any]:
        """Ask the API of running tasks, which makes itself ready at the first call ever: seconds of silence."""
        health: dict[str, Any] = self._http.call("GET", "/execution/health")
        return health

    def import_errors(self) -> dict[str, str]:
        """Return the stack trace of every DAG file that does not import."""
        errors = self._http.pages("/api/v2/importErrors", "import_errors")
        return {error["filename"]: error["stack_trace"] for error in errors}

    def dag_ids(self) -> set[str]:
        """Return the DAGs that are parsed and not stale."""
        return {dag["dag_id"] for dag in self._http.pages("/api/v2/dags", "dags")}

    def wait_for_dag(self, dag_id: str, *, timeout: float = 60.0, after: datetime | None = None) -> None:
        """Wait until a DAG is parsed.

        :param dag_id: the DAG.
        :param timeout: seconds.
        :param after: only a parse later than this counts, for a file that was just changed.
        """

        def parsed() -> bool:
            try:
                dag = self.call("GET", f"/dags/{quoted(dag_id)}")
            except ApiError as error:
                if error.status == NOT_FOUND:
                    return False
                raise
            return not dag["is_stale"] and (
                after is None or dag["last_parsed_time"].replace("Z", "+00:00") > after.isoformat()
            )

        def explain() -> str:
            errors = self.import_errors()
            return (
                "".join(f"\n--- {name}\n{trace}" for name, trace in errors.items()) or " and no import error"
            )

        wait_until(parsed, timeout=timeout, what=f"DAG {dag_id!r} is not parsed", explain=explain)

    def unpause(self, dag_id: str) -> None:
        """Let a DAG's runs start.

        :param dag_id: the DAG.
        """
        self.call("PATCH", f"/dags/{quoted(dag_id)}", body={"is_paused": False})

    def pause(self, dag_id: str) -> None:
        """Keep a DAG's runs from starting.

        :param dag_id: the DAG.
        """
        self.call("PATCH", f"/dags/{quoted(dag_id)}", body={"is_paused": True})

    def trigger(
        self,
        dag_id: str,
        *,
        params: dict[str, Any] | None = None,
        logical_date: datetime | None = None,
        run_id: str | None = None,
    ) -> str:
        """Trigger a run as the UI's form does, and return its id.

        :param dag_id: the DAG.
        :param params: the form's values.
        :param logical_date: None for a run without one.
        :param run_id: None lets Airflow choose.
        """
        body: dict[str, Any] = {
            "conf": params or {},
            "logical_date": None if logical_date is None else logical_date.isoformat(),
        }
        if run_id is not None:
            body["dag_run_id"] = run_id
        return str(self.call("POST", f"/dags/{quoted(dag_id)}/dagRuns", body=body)["dag_run_id"])

    def runs(self, dag_id: str) -> list[dict[str, Any]]:
        """List a DAG's runs.

        :param dag_id: the DAG.
        """
        return self._http.pages(f"/api/v2/dags/{quoted(dag_id)}/dagRuns", "dag_runs")

    def run_state(self, dag_id: str, run_id: str) -> str:
        """Return the state of a run.

        :param dag_id: the DAG.
        :param run_id: the run.
        """
        return str(self.call("GET", run_path(dag_id, run_id))["state"])

    def wait_for_run(
        self,
        dag_id: str,
        run_id: str,
        *,
        timeout: float = 120.0,
        on_poll: Callable[[], None] | None = None,
        poll: float = POLL,
    ) -> str:
        """Wait until a run has ended and return its state, `success` or `failed`.

        :param dag_id: the DAG.
        :param run_id: the run.
        :param timeout: seconds.
        :param on_poll: called between two looks, for a progress display.
        :param poll: seconds between two looks.
        """

        def ended() -> bool:
            if on_poll is not None:
                on_poll()
            return self.run_state(dag_id, run_id) in _FINISHED

        def explain() -> str:
            states = [
                f"{ti.task_id}[{ti.map_index}]={ti.state}" for ti in self.task_instances(dag_id, run_id)
            ]
            return f": {', '.join(states)}"

        wait_until(
            ended,
            timeout=timeout,
            what=f"run {run_id!r} of {dag_id!r} has not ended",
            explain=explain,
            poll=poll,
        )
        return self.run_state(dag_id, run_id)

    def clear_run(self, dag_id: str, run_id: str, *, only_failed: bool = False) -> None:
        """Clear a whole run, so that it runs again.

        :param dag_id: the DAG.
        :param run_id: the run.
        :param only_failed: leave the instances that succeeded.
        """
        self.call(
            "POST", f"{run_path(dag_id, run_id)}/clear", body={"dry_run": False, "only_failed": only_failed}
        )
