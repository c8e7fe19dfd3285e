"""A container as a local process: the same command and environment, with other hosts, ports and paths."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from airflow_llm_provider.local.services.service_set import ServiceSet, log_tail
from airflow_llm_provider.local.services.supervisor import Plan

if TYPE_CHECKING:
    from tests.compose.compose_file import Service

__all__ = ["Container", "Machine"]

_REPOSITORY = Path(__file__).parents[2]
#: What an image brings along where a container looks for it.
_HOME = "/opt/airflow"
_IMAGE_FILES = {"/opt/provider": _REPOSITORY}
#: What the Dockerfile copies into the home of every container.
_HOME_FILES = re.compile(rf"^COPY (?:--\S+ )*(\S+) {_HOME}/(\S+)$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What containers share here, and Docker would keep apart.

    :param folder: of homes and volumes.
    :param ports: local port by `service:port`.
    :param folders: folder that takes the place of one beside the compose file.
    """

    folder: Path
    ports: dict[str, int] = field(default_factory=dict)
    folders: dict[str, Path] = field(default_factory=dict)

    def source(self, source: str) -> Path:
        """Return the folder of a mount."""
        return self.folders[source] if source.startswith(".") else self.folder / "volumes" / source

    def localised(self, text: str, service: Service, home: Path) -> str:
        """Put local hosts, ports and paths into a text of the compose file."""
        for address, port in self.ports.items():
            text = re.sub(rf"(?<![\w.-]){re.escape(address)}(?!\d)", f"127.0.0.1:{port}", text)
        paths = {target: self.source(source) for source, target in service.volumes} | _IMAGE_FILES
        # The longest first: a mount lies within the home.
        for target in sorted(paths, key=len, reverse=True):
            text = re.sub(rf"(?<![\w.-]){re.escape(target)}(?![\w.-])", f"\0{paths[target]}", text)
        return re.sub(rf"(?<![\w.\0-]){_HOME}(?![\w.-])", str(home), text).replace("\0", "")


class Container:
    """One replica of a service.

    :param extra: environment that names local ports.
    :param words: words after the command that name them.
    :param command: in place of the image's own.
    :param local: local port by the address at which only this container reaches itself.
    """

    def __init__(
        self,
        service: Service,
        machine: Machine,
        *,
        replica: int = 1,
        extra: dict[str, str] | None = None,
        words: list[str] | None = None,
        command: list[str] | None = None,
        local: dict[str, int] | None = None,
    ) -> None:
        self.service = service
        self._machine = replace(machine, ports=machine.ports | (local or {}))
        self.name = service.name if service.replicas == 1 else f"{service.name}-{replica}"
        self.home = machine.folder / "homes" / self.name
        self.home.mkdir(parents=True)
        for source, target in _HOME_FILES.findall((_REPOSITORY / "Dockerfile").read_text(encoding="utf-8")):
            (self.home / target).mkdir(parents=True, exist_ok=True)
            shutil.copy(_REPOSITORY / source, self.home / target)
        for source, _ in service.volumes:
            machine.source(source).mkdir(parents=True, exist_ok=True)
        self.command = [
            *(machine.localised(word, service, self.home) for word in command or service.command),
            *(words or []),
        ]
        own = {
            name: machine.localised(value, service, self.home) for name, value in service.environment.items()
        }
        self.environment = _inherited() | {"AIRFLOW_HOME": str(self.home)} | own | (extra or {})
        self._services = ServiceSet(self.home / "run")

    def start(self) -> None:
        """Start it, also again."""
        program = shutil.which(self.command[0], path=self.environment["PATH"])
        assert program, f"{self.command[0]} is not installed"
        plan = Plan(folder="", services={self.name: [program, *self.command[1:]]})
        self._services.start(plan, env=self.environment)

    def health(self) -> subprocess.CompletedProcess[str]:
        """Run the health check of the file in it."""
        kind, *words = self.service.health
        words = [self._machine.localised(word, self.service, self.home) for word in words]
        command = ["sh", "-c", *words] if kind == "CMD-SHELL" else words
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=600, check=False
        )

    def run(self, *, timeout: float = 600.0) -> str:
        """Run what runs once, and return what it said."""
        done = subprocess.run(
            self.command, env=self.environment, capture_output=True, text=True, timeout=timeout, check=False
        )
        assert done.returncode == 0, f"{self.name}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout + done.stderr

    def processes(self) -> list[psutil.Process]:
        """Every process of it, the service's own first."""
        return self._services.processes()

    def pid(self) -> int:
        """Process number of the service itself."""
        status = self._services.status
        assert status is not None
        return status.services[self.name]

    def kill(self) -> None:
        """End it as `docker kill` does: every process at once, none of which is told."""
        while processes := self._services.processes():
            for process in processes:
                try:
                    process.send_signal(signal.SIGKILL)
                except psutil.NoSuchProcess:
                    continue
            psutil.wait_procs(processes, timeout=5)

    def stop(self) -> None:
        """End it as `docker stop` does."""
        self._services.stop()

    def restart(self) -> None:
        """Stop it and start it again."""
        self.stop()
        self.start()

    @property
    def ended(self) -> bool:
        """Whether it has ended by itself."""
        status = self._services.status
        return status is not None and status.state == "failed"

    def log(self, lines: int = 40) -> str:
        """The end of its output."""
        path = self.home / "run" / f"{self.name}.log"
        return f"--- {self.name}\n{log_tail(path, lines) if path.exists() else 'no output'}"


def _inherited() -> dict[str, str]:
    """The little that a container has from the image: programs and libraries."""
    # A linked interpreter would lose its environment when resolved.
    programs = str(Path(sys.executable).parent)
    path = os.pathsep.join([programs, os.environ.get("PATH", os.defpath)])
    kept = {name: os.environ[name] for name in ("LANG", "TMPDIR", "TZ") if name in os.environ}
    return kept | {"PATH": path, "HOME": str(Path.home()), "NO_PROXY": "*", "no_proxy": "*"}
