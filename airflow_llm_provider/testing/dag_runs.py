"""Runs of DAG files in a test: in a process with an Airflow of its own, against the scripted server."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Self

from airflow_llm_provider.dataset import read_results
from airflow_llm_provider.starter.environment import AirflowSettings, airflow_environment, new_secrets
from airflow_llm_provider.starter.template import restore, save, template_path
from airflow_llm_provider.xcom import RunSummary

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime
    from pathlib import Path

    import pyarrow as pa

    from airflow_llm_provider.testing.scripted_server import ScriptedServer

__all__ = ["AirflowProcess", "DagRunner", "DagTestRun"]

#: What a failed assertion shows of a run's log, in characters.
_TAIL = 4000


@dataclass(frozen=True, kw_only=True)
class DagTestRun:
    """How a run went.

    :param state: ``success`` or ``failed``.
    :param states: states of task instances by task id and map index, which is -1 where nothing is mapped.
    :param xcoms: values by task id, map index and key.
    :param log: what Airflow and the tasks logged.
    """

    dag_id: str
    state: str
    states: Mapping[tuple[str, int], str | None]
    xcoms: Mapping[tuple[str, int, str], Any]
    log: str = field(repr=False)

    def summary(self, group_id: str | None = None) -> RunSummary:
        """Return what the merge returned.

        :param group_id: which ``llm_map``, in a DAG with several.
        :raises AssertionError: when no merge or more than one has returned; the message ends with the log.
        """
        wanted = "merge" if group_id is None else f"{group_id}.merge"
        found = {
            task_id: value
            for (task_id, _, key), value in self.xcoms.items()
            if key == "return_value"
            and (task_id == wanted or (group_id is None and task_id.endswith(".merge")))
        }
        if len(found) != 1:
            raise AssertionError(
                f"{self.dag_id} is {self.state} with {sorted(found) or 'no merge'} done, and one was expected; "
                f"tasks: {self.states}\n{self.log[-_TAIL:]}"
            )
        return RunSummary.from_json(next(iter(found.values())))

    def rows(self, group_id: str | None = None) -> list[dict[str, Any]]:
        """Return the output's rows, in input order.

        :param group_id: as in :meth:`summary`, whose errors this raises too.
        """
        table: pa.Table = read_results(self.summary(group_id).destination)
        return list(table.to_pylist())


class AirflowProcess:
    """A process that has loaded Airflow once and runs one DAG file after the other.

    :param home: a new folder for database and logs.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            # It has nothing to save, and Airflow takes seconds to say good-bye.
            self._process.kill()
            self._process.communicate()

    def run(self, order: dict[str, Any]) -> dict[str, Any]:
        """Run one DAG and return its process's reply; the first call starts the process.

        :param order: see :mod:`airflow_llm_provider.testing.dag_process`.
        :raises RuntimeError: when the process has ended; the message ends with its log.
        """
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        before = self._log_file.stat().st_size
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
        line = process.stdout.readline()
        with self._log_file.open(encoding="utf-8", errors="replace") as log:
            log.seek(before)
            said = log.read()
        if not line:
            raise RuntimeError(f"the process that runs DAGs ended with {process.wait()}:\n{said[-_TAIL:]}")
        return {**json.loads(line), "log": said}

    @property
    def _log_file(self) -> Path:
        return self._home / "log.txt"

    def _start(self) -> subprocess.Popen[str]:
        folder = self._home / "dags"
        folder.mkdir(exist_ok=True)
        # Nobody listens on the port: `dag.test()` runs the API of tasks inside its own process.
        settings = AirflowSettings(home=self._home, port=1, dag_folders=(folder,))
        env = airflow_environment(settings, new_secrets(), inherited=os.environ)
        env["AIRFLOW__LLM__LIMITER_URL"] = (self._home / "limits").as_uri()
        # Airflow would go on with the DAG as it was half a minute ago, where the next test has another of the same name.
        env["AIRFLOW__CORE__MIN_SERIALIZED_DAG_UPDATE_INTERVAL"] = "0"
        with self._log_file.open("ab") as log:
            self._prepare(settings.database, env, log)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "airflow_llm_provider.testing.dag_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=env,
            )
        return self._process

    @staticmethod
    def _prepare(database: Path, env: dict[str, str], log: Any) -> None:
        template = template_path(version("apache-airflow-core"))
        if not restore(template, database):
            command = [sys.executable, "-m", "airflow", "db", "migrate"]
            subprocess.run(command, env=env, stdout=log, stderr=log, check=True)  # noqa: S603 -- ourselves
            save(database, template)


class DagRunner:
    """Runs DAG files; call it.

    :param airflow: where they run.
    :param server: which model they ask.
    """

    def __init__(self, airflow: AirflowProcess, server: ScriptedServer) -> None:
        self._airflow = airflow
        self._server = server

    def __call__(
        self,
        file: str | os.PathLike[str],
        *,
        dag_id: str | None = None,
        params: Mapping[str, Any] | None = None,
        logical_date: datetime | None = None,
        conn_ids: Sequence[str] = ("llm_default",),
        variables: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        retries: int | None = 0,
    ) -> DagTestRun:
        """Run a DAG to its end by ``dag.test()``.

        Tasks run one after the other in one process, pools and executors play no part. The first call of a session
        loads Airflow, which takes seconds; further ones take about one.

        :param file: path of the DAG file.
        :param dag_id: needed when the file has several DAGs.
        :param params: as typed into the form.
        :param logical_date: a time with a zone; ``None``: now.
        :param conn_ids: connections that lead to the model server.
        :param variables: Airflow variables.
        :param environment: environment variables while the file is loaded and run; a variable such as
            ``AIRFLOW_CONN_LAKE`` makes another connection.
        :param retries: of every task; ``None``: what the DAG says, with its delays.
        :raises ValueError: when the file does not import, or has no such DAG.
        """
        connection = json.dumps({"conn_type": "llm", "host": self._server.base_url})
        env = {f"AIRFLOW_CONN_{conn_id.upper()}": connection for conn_id in conn_ids}
        env |= {f"AIRFLOW_VAR_{name.upper()}": value for name, value in (variables or {}).items()}
        order = {
            "file": os.path.abspath(file),  # noqa: PTH100 -- a link stays a link
            "dag_id": dag_id,
            "params": dict(params or {}),
            "logical_date": None if logical_date is None else logical_date.isoformat(),
            "environment": {**env, **(environment or {})},
            "retries": retries,
        }
        reply = self._airflow.run(order)
        if "error" in reply:
            raise ValueError(reply["error"])
        return DagTestRun(
            dag_id=reply["dag_id"],
            state=reply["state"],
            states={(task_id, index): state for task_id, index, state in reply["states"]},
            xcoms={(task_id, index, key): value for task_id, index, key, value in reply["xcoms"]},
            log=reply["log"],
        )
