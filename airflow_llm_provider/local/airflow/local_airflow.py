"""A real Airflow on this machine: API server, scheduler, DAG processor, SQLite and LocalExecutor in one folder."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_llm_provider.local.airflow.config_file import write_config
from airflow_llm_provider.local.errors import ApiError, StartError
from airflow_llm_provider.local.rest import AirflowClient
from airflow_llm_provider.local.services.ports import free_port
from airflow_llm_provider.local.services.service_set import ServiceSet, log_tail
from airflow_llm_provider.local.services.supervisor import Plan
from airflow_llm_provider.starter.environment import (
    AirflowSettings,
    Secrets,
    airflow_environment,
    new_secrets,
)
from airflow_llm_provider.starter.template import restore, template_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

    import psutil  # type: ignore[import-untyped]

__all__ = ["LocalAirflow"]

_PORT_ATTEMPTS = 3
#: Airflow's scheduler ends when the database answers what it does not expect, such as a row gone under its hands
#: (apache/airflow#63926), and counts on being started again: every deployment does that.
_RESTARTS = 5


class LocalAirflow:
    """Runs Airflow for as long as it is wanted, and leaves no process behind.

    Use it as a context manager, or `start` and `stop` it. When the starting process dies, even by SIGKILL, Airflow
    stops too, unless `keep` is set; then `LocalAirflow.attach(home)` finds it again.

    :param home: folder of database, logs and keys; it is created.
    :param dags: folder, or folders, with DAG files.
    :param port: port on 127.0.0.1, None for a free one.
    :param env: environment variables that win over the computed ones.
    :param parallelism: tasks at once.
    :param triggerer: whether deferred tasks can run.
    :param keep: whether to go on after the starting process.
    """

    def __init__(
        self,
        home: Path,
        dags: Path | Sequence[Path],
        *,
        port: int | None = None,
        env: Mapping[str, str] | None = None,
        parallelism: int = 4,
        triggerer: bool = False,
        keep: bool = False,
    ) -> None:
        self.home = home.absolute()
        self._folders = tuple(path.absolute() for path in ([dags] if isinstance(dags, Path) else dags))
        self._fixed_port = port
        self._extra = dict(env or {})
        self._parallelism = parallelism
        self._triggerer = triggerer
        self._keep = keep
        self._services = ServiceSet(self.home / "run")
        self._settings = self._with_port(port or free_port())

    @classmethod
    def attach(cls, home: Path) -> LocalAirflow:
        """Return the Airflow of a home, running or not, for instance to stop it.

        :param home: folder given to an earlier one.
        """
        state = json.loads((home / "local.json").read_text(encoding="utf-8"))
        return cls(
            home,
            [Path(folder) for folder in state["dag_folders"]],
            port=state["port"],
            env=state["extra"],
            parallelism=state["parallelism"],
            triggerer=state["triggerer"],
            keep=True,
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """Where UI and REST API answer."""
        return self._settings.url

    @property
    def running(self) -> bool:
        """Whether Airflow was started and not stopped."""
        return self._services.alive

    @property
    def environment(self) -> dict[str, str]:
        """Environment of every Airflow process, for `airflow` commands against this home."""
        return airflow_environment(self._settings, self._secrets(), inherited=os.environ, extra=self._extra)

    def client(self, *, timeout: float = 30.0) -> AirflowClient:
        """Return a REST client; close it when done.

        :param timeout: seconds for one call.
        """
        return AirflowClient(self.url, timeout=timeout, explain=self._services.obituary)

    def processes(self) -> list[psutil.Process]:
        """List every process of this Airflow, tasks included."""
        return self._services.processes()

    def command(self, *args: str) -> list[str]:
        """Return the command line of an `airflow` command; run it with `environment`.

        :param args: for example `"backfill", "create"`.
        """
        # Not the `airflow` script: the interpreter in its first line cannot have a space in its path.
        return [sys.executable, "-m", "airflow_llm_provider.local.airflow.launch", *args]

    def start(self, *, timeout: float = 240.0) -> Self:
        """Start Airflow and wait until every component is healthy.

        :param timeout: seconds.
        :raises StartError: when a component dies or is not healthy in time; the message ends with its log.
        """
        self.home.mkdir(parents=True, exist_ok=True)
        # The home holds keys, and connections that can be read with them.
        self.home.chmod(0o700)
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            self._write_state()
            self._write_plugin()
            write_config(self.home / "airflow.cfg", self.environment)
            try:
                self._start_once(timeout)
            except StartError as error:
                self.stop()
                # Another process may take a free port between our look and the server's start.
                if (
                    self._fixed_port
                    or "address already in use" not in str(error)
                    or attempt == _PORT_ATTEMPTS
                ):
                    raise
                self._settings = self._with_port(free_port())
            except BaseException:
                self.stop()
                raise
            else:
                break
        return self

    def stop(self) -> None:
        """End every process, running tasks included; twice is harmless."""
        self._services.stop()

    def log_tails(self, lines: int = 20) -> str:
        """Return the end of every component's log.

        :param lines: of each.
        """
        paths = sorted(self._services.folder.glob("*.log"))
        return "\n".join(f"--- {path}\n{log_tail(path, lines)}" for path in paths)

    def _with_port(self, port: int) -> AirflowSettings:
        return AirflowSettings(
            home=self.home,
            port=port,
            dag_folders=self._folders,
            parallelism=self._parallelism,
            triggerer=self._triggerer,
        )

    def _start_once(self, timeout: float) -> None:
        services = {
            # The slowest to come up first: on two cores the order is felt.
            "api-server": self.command("api-server"),
            "scheduler": self.command("scheduler", "--skip-serve-logs"),
            "dag-processor": self.command("dag-processor"),
        }
        if self._triggerer:
            services["triggerer"] = self.command("triggerer", "--skip-serve-logs")
        plan = Plan(
            folder="",
            prepare=self._prepare_database(),
            services=services,
            keep=self._keep,
            restarts=_RESTARTS,
        )
        self._services.start(plan, env=self.environment)
        # Nobody answers while it starts, for no reason that is worth telling.
        with AirflowClient(self.url, timeout=5.0) as client:
            self._services.wait_until(lambda: self._healthy(client), timeout=timeout, what="Airflow")

    def _prepare_database(self) -> dict[str, list[str]]:
        """Copy the template to a new home, or return the commands that migrate its database."""
        database = self._settings.database
        template = template_path(version("apache-airflow-core"))
        if database.exists():
            return {"db-migrate": self.command("db", "migrate")}
        if restore(template, database):
            return {}
        module = "airflow_llm_provider.starter.template"
        return {
            "db-migrate": self.command("db", "migrate"),
            "db-template": [sys.executable, "-m", module, os.fspath(database), os.fspath(template)],
        }

    def _healthy(self, client: AirflowClient) -> bool:
        try:
            health = client.health()
            client.execution_health()
        except ApiError:
            return False
        wanted = ["metadatabase", "scheduler", "dag_processor", *(["triggerer"] if self._triggerer else [])]
        return all(health[name]["status"] == "healthy" for name in wanted)

    def _secrets(self) -> Secrets:
        path = self.home / "secrets.json"
        if not path.exists():
            path.touch(mode=0o600)
            path.write_text(json.dumps(asdict(new_secrets())), encoding="utf-8")
        return Secrets(**json.loads(path.read_text(encoding="utf-8")))

    def _write_state(self) -> None:
        state = {
            "port": self._settings.port,
            "dag_folders": [os.fspath(folder) for folder in self._folders],
            "extra": self._extra,
            "parallelism": self._parallelism,
            "triggerer": self._triggerer,
        }
        path = self.home / "local.json"
        path.touch(mode=0o600)
        path.write_text(json.dumps(state), encoding="utf-8")

    def _write_plugin(self) -> None:
        folder = self.home / "plugins"
        folder.mkdir(exist_ok=True)
        module = "airflow_llm_provider.local.airflow.one_change"
        code = f'from {module} import OneChangePlugin\n\n__all__ = ["OneChangePlugin"]\n'
        (folder / "one_change_at_a_time.py").write_text(code, encoding="utf-8")
