"""The harness itself, with real Airflow processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import psutil
import pytest

from airflow_llm_provider.local import AirflowClient, LocalAirflow
from airflow_llm_provider.local.errors import ApiError, LocalError
from airflow_llm_provider.local.rest import wait_until
from tests.system.stage import SYSTEM

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = SYSTEM

TRIVIAL = """
import time
from airflow.sdk import DAG, Param, get_current_context, task
from airflow.sdk.bases.operator import BaseOperator

class Part(BaseOperator):
    def __init__(self, *, shard, **kwargs):
        super().__init__(**kwargs)
        self.shard = shard

    def execute(self, context):
        if self.shard["index"] == context["params"]["broken"]:
            raise ValueError("this part is broken")
        return self.shard["index"]

with DAG("trivial", schedule=None, params={"broken": Param(-1, type="integer")}):
    @task
    def split():
        return [{"index": i, "label": f"part {i}"} for i in range(3)]

    part = Part.partial(task_id="part", map_index_template="{{ task.shard['label'] }}").expand(shard=split())

    @task(trigger_rule="none_failed")
    def merge(parts):
        return sum(parts)

    merge(part.output)
"""

SINGLE = """
from airflow.sdk import DAG, task

with DAG("single", schedule=None, max_active_runs=16):
    @task
    def one():
        return 1

    one()
"""


@pytest.fixture(scope="module")
def trivial(add_dag) -> str:
    return add_dag("trivial", TRIVIAL)


@pytest.fixture(scope="module")
def single(add_dag) -> str:
    return add_dag("single", SINGLE)


class TestRuns:
    def test_a_mapped_dag_runs_and_its_values_can_be_read(self, client: AirflowClient, trivial: str) -> None:
        run = client.trigger(trivial)

        assert client.wait_for_run(trivial, run) == "success"

        parts = client.task_instances(trivial, run, "part")
        assert [(ti.map_index, ti.state, ti.label) for ti in parts] == [
            (0, "success", "part 0"),
            (1, "success", "part 1"),
            (2, "success", "part 2"),
        ]
        assert client.xcom(trivial, run, "merge") == 3
        assert client.xcom(trivial, run, "part", map_index=2) == 2
        assert client.xcom(trivial, run, "part", key="absent", map_index=2) is None
        assert "Returned value was: 3" in client.log(trivial, run, "merge")

    def test_one_failed_instance_is_cleared_alone(self, client: AirflowClient, trivial: str) -> None:
        run = client.trigger(trivial, params={"broken": 1})
        assert client.wait_for_run(trivial, run) == "failed"
        states = {(ti.task_id, ti.map_index): ti.state for ti in client.task_instances(trivial, run)}
        assert states["part", 1] == "failed"
        assert states["merge", -1] == "upstream_failed"

        cleared = client.clear(trivial, run, [("part", 1)], include_downstream=True)

        assert sorted(cleared) == [("merge", -1), ("part", 1)]
        assert client.wait_for_run(trivial, run) == "failed"
        tries = {(ti.task_id, ti.map_index): ti.try_number for ti in client.task_instances(trivial, run)}
        assert tries["part", 0] == 1
        assert tries["part", 1] == 2

    def test_waiting_too_long_says_what_the_run_is_doing(self, client: AirflowClient, trivial: str) -> None:
        run = client.trigger(trivial)
        with pytest.raises(LocalError, match=r"has not ended after 0 s: .*merge\[-1\]="):
            client.wait_for_run(trivial, run, timeout=0)
        client.wait_for_run(trivial, run)


class TestObjects:
    def test_connections_and_pools_can_be_put_twice(self, client: AirflowClient) -> None:
        for slots in (3, 5):
            client.put_pool("twice", slots)
            client.put_connection(
                "twice", conn_type="generic", host="http://127.0.0.1/v1", extra={"n": slots}
            )

        assert client.call("GET", "/pools/twice")["slots"] == 5
        assert client.call("GET", "/connections/twice")["extra"] == '{"n": 5}'

    def test_a_refused_call_says_why(self, client: AirflowClient) -> None:
        with pytest.raises(
            ApiError, match=r"POST /api/v2/dags/absent/dagRuns answered 404: .*absent.* not found"
        ):
            client.trigger("absent")

    def test_a_dag_that_does_not_import_is_named(self, client: AirflowClient, dags_folder: Path) -> None:
        broken = dags_folder / "broken.py"
        broken.write_text("from airflow.sdk import DAG\nraise RuntimeError('not today')\n")
        try:
            wait_until(lambda: bool(client.import_errors()), timeout=300, what="no import error is reported")
            with pytest.raises(LocalError, match=r"(?s)'broken' is not parsed after 0 s.*not today"):
                client.wait_for_dag("broken", timeout=0)
        finally:
            broken.unlink()


class TestChangesAtOnce:
    def test_several_people_and_running_tasks_do_not_lock_each_other_out(
        self, airflow: LocalAirflow, client: AirflowClient, single: str
    ) -> None:
        def trigger_twice(_: int) -> list[str]:
            with airflow.client() as own:
                return [own.trigger(single) for _ in range(2)]

        with ThreadPoolExecutor(3) as people:
            runs = [run for found in people.map(trigger_twice, range(3)) for run in found]

        assert {client.wait_for_run(single, run, timeout=200, poll=1.0) for run in runs} == {"success"}


class TestShell:
    @pytest.mark.parametrize("option", [("database", "sql_alchemy_conn"), ("llm_examples", "data")])
    def test_a_command_that_is_given_the_home_alone_has_its_settings(
        self, airflow: LocalAirflow, option: tuple[str, str]
    ) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "airflow", "config", "get-value", *option],
            env={"PATH": os.environ["PATH"], "AIRFLOW_HOME": str(airflow.home)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == airflow.environment["AIRFLOW__{}__{}".format(*option).upper()]


class TestProcesses:
    def test_everything_listens_on_loopback_only(self, airflow: LocalAirflow) -> None:
        ours = {process.pid for process in airflow.processes()}
        listening = [
            connection.laddr.ip
            for connection in psutil.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN and connection.pid in ours
        ]
        assert set(listening) == {"127.0.0.1"}

    def test_a_second_airflow_runs_beside_and_nothing_is_left_when_its_starter_is_killed(
        self, airflow: LocalAirflow, tmp_path: Path
    ) -> None:
        home = tmp_path / "second home"
        (tmp_path / "dags").mkdir()
        starter = subprocess.Popen(
            [sys.executable, "-c", STARTER, str(home), str(tmp_path / "dags")],
            stdout=subprocess.PIPE,
            text=True,
        )
        with starter:
            assert starter.stdout is not None
            assert starter.stdout.readline() == "started\n"
            second = LocalAirflow.attach(home)
            processes = second.processes()
            assert len(processes) >= 4
            assert second.url != airflow.url
            assert (home / "secrets.json").stat().st_mode & 0o077 == 0

            starter.send_signal(signal.SIGKILL)

        _gone, alive = psutil.wait_procs(processes, timeout=60)
        assert alive == []
        assert not second.running
        second.stop()


STARTER = """
import sys, time
from pathlib import Path
from airflow_llm_provider.local import LocalAirflow
LocalAirflow(Path(sys.argv[1]), Path(sys.argv[2])).start()
print("started", flush=True)
time.sleep(600)
"""
