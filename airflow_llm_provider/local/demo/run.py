"""The main job from end to end: a real dataset, a real model, real Airflow; everything stopped at the end."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_llm_provider.local.airflow.local_airflow import LocalAirflow
from airflow_llm_provider.local.demo.display import progress_display, say, table_width, working
from airflow_llm_provider.local.demo.follow import RunFollower
from airflow_llm_provider.local.demo.home import Home, prepare_airflow
from airflow_llm_provider.local.demo.model_server import ModelServer
from airflow_llm_provider.local.demo.result import (
    counts_table,
    local_path,
    read_rows,
    readable_log,
    result_table,
)
from airflow_llm_provider.local.errors import LocalError
from airflow_llm_provider.xcom import RunSummary

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from airflow_llm_provider.local.rest import AirflowClient
    from airflow_llm_provider.starter.endpoint import ModelEndpoint

__all__ = ["DAG_ID", "DemoResult", "run_demo"]

DAG_ID = "catalog_packages"
GROUP_ID = "catalogue"
_ASKED, _ANSWERED = ("name", "summary"), ("category", "audience", "llm_status")
_TIMEOUT = 900.0
_POLL = 1.0


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """How the demo ended.

    :param summary: the run's summary.
    :param seconds: from the first process to the end of the run.
    """

    summary: RunSummary
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether every row has an answer."""
        return self.summary.rows > 0 and self.summary.succeeded == self.summary.rows

    def to_json(self) -> dict[str, Any]:
        """Return what the last line says."""
        return {
            "demo": "ok" if self.ok else "failed",
            "rows": self.summary.rows,
            "succeeded": self.summary.succeeded,
            "shards": self.summary.shards,
            "requests": self.summary.requests,
            "seconds": round(self.seconds, 1),
            "output": str(local_path(self.summary.destination)),
        }


def run_demo(
    home: Home,
    dags: Path,
    given: ModelEndpoint | None,
    *,
    rows: int,
    terminal: bool | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> DemoResult:
    """Run the demo and stop all that it started, however it ends.

    :param home: folder of everything it writes; emptied first.
    :param dags: folder of the DAG files.
    :param given: endpoint to ask instead of the small model.
    :param rows: rows to ask about.
    :param terminal: whether to draw a bar; None asks the output.
    :param clock: seconds.
    """
    began = clock()
    home.create(empty=True)
    with ExitStack() as stack:
        say("Starting the model server and Airflow …" if given is None else "Starting Airflow …")
        endpoint = given or stack.enter_context(ModelServer(home.model)).endpoint
        airflow = stack.enter_context(LocalAirflow(home.airflow, dags, env=home.environment(endpoint)))
        client = stack.enter_context(airflow.client())
        say(f"  model    {endpoint.model} at {endpoint.base_url}")
        say(f"  Airflow  {airflow.url} (until the demo ends; `make up` keeps one)")
        prepare_airflow(client, endpoint)
        client.wait_for_dag(DAG_ID)
        client.unpause(DAG_ID)
        run_id = client.trigger(DAG_ID, params={"rows": rows, "model": endpoint.model})
        say(f"Running DAG {DAG_ID} …")
        summary = _follow(client, run_id, home, terminal=terminal)
        result = DemoResult(summary=summary, seconds=clock() - began)
        # What somebody has waited for is not kept waiting for what nobody cares about, and nothing is said after it.
        _report(home, result)
        with working("Stopping …"):
            stack.close()
    return result


def _follow(client: AirflowClient, run_id: str, home: Home, *, terminal: bool | None) -> RunSummary:
    from airflow_llm_provider.dataset.files.layout import Layout  # noqa: PLC0415 - loads pyarrow, while Airflow starts tasks

    layout = Layout(f"file://{home.data}/catalogue")
    follower = RunFollower(client, DAG_ID, run_id, GROUP_ID, layout)
    with progress_display(terminal=terminal) as show:
        state = client.wait_for_run(
            DAG_ID, run_id, timeout=_TIMEOUT, on_poll=lambda: show(follower.look()), poll=_POLL
        )
        show(follower.look())
    if state != "success":
        raise LocalError(f"the run ended as {state}{_failed_logs(client, run_id)}")
    return RunSummary.from_json(client.xcom(DAG_ID, run_id, f"{GROUP_ID}.merge"))


def _failed_logs(client: AirflowClient, run_id: str) -> str:
    """Return the end of the first failed task's log: with one cause, all look the same."""
    for ti in client.task_instances(DAG_ID, run_id):
        if ti.state == "failed":
            log = client.log(DAG_ID, run_id, ti.task_id, try_number=ti.try_number, map_index=ti.map_index)
            return f"\n--- {ti.task_id} [{ti.label or ti.map_index}]\n{readable_log(log)}"
    return ""


def _report(home: Home, result: DemoResult) -> None:
    summary, width = result.summary, table_width()
    say("")
    rows = read_rows(summary.files, (*_ASKED, *_ANSWERED))
    say(result_table(rows, _ASKED, _ANSWERED, width))
    say("")
    say(counts_table(summary, result.seconds, width))
    say("")
    say(f"output     {local_path(summary.destination)}")
    say(f"manifest   {local_path(summary.manifest)}")
    if summary.rejects:
        say(f"rejects    {local_path(summary.rejects)}")
    say(f"task logs  {home.airflow / 'logs'}")
    say("")
