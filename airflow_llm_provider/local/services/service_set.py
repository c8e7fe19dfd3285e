"""One supervised set of processes, seen from the process that wants it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import psutil  # type: ignore[import-untyped]

from airflow_llm_provider.local.errors import StartError
from airflow_llm_provider.local.services.processes import Identity, end_processes, members
from airflow_llm_provider.local.services.supervisor import Plan, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

__all__ = ["ServiceSet", "log_tail"]

_POLL = 0.1
_TAIL_LINES = 30
_TAIL_BYTES = 20_000


class ServiceSet:
    """Starts, watches and stops what a `Plan` names.

    A set is found again through its folder, by this process or a later one.

    :param folder: folder of the set's status and logs; one set at a time.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def status(self) -> Status | None:
        """What the supervisor said last, None when nothing was ever started here."""
        return Status.read(self.folder / "status.json")

    @property
    def alive(self) -> bool:
        """Whether the supervisor runs."""
        status = self.status
        return status is not None and status.supervisor.alive()

    def start(self, plan: Plan, *, env: Mapping[str, str]) -> None:
        """Start the supervisor and return at once.

        :param plan: what to run; its folder is replaced by this set's.
        :param env: environment of all processes.
        """
        if self.alive:
            raise StartError(f"something already runs in {self.folder}: stop it first")
        self.folder.mkdir(parents=True, exist_ok=True)
        # What a killed supervisor left behind would hold the ports and the database.
        self.stop()
        (self.folder / "status.json").unlink(missing_ok=True)
        plan = replace(plan, folder=os.fspath(self.folder))
        plan_file = self.folder / "plan.json"
        plan_file.write_text(json.dumps(asdict(plan), indent=1), encoding="utf-8")
        with plan_file.with_name("supervisor.log").open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - the command is ours
                [
                    sys.executable,
                    "-m",
                    "airflow_llm_provider.local.services.supervisor",
                    os.fspath(plan_file),
                ],
                stdin=subprocess.DEVNULL if plan.keep else subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(env),
                start_new_session=True,
            )

    def wait_until(self, ready: Callable[[], bool], *, timeout: float, what: str) -> None:
        """Wait until the services answer.

        :param ready: asked a few times a second.
        :param timeout: seconds to wait at most.
        :param what: named in the error.
        :raises StartError: when a process ends or the time is over; the message ends with its log.
        """
        deadline = time.monotonic() + timeout
        while True:
            self._raise_if_failed(what)
            status = self.status
            if status is not None and status.state == "running" and ready():
                return
            if time.monotonic() > deadline:
                raise StartError(f"{what} was not ready after {timeout:g} s{self._logs()}")
            time.sleep(_POLL)

    def obituary(self, *, patience: float = 3.0) -> str:
        """Say why nothing answers: which process ended, how, and the end of its log.

        :param patience: seconds to wait for word of a death that has only just happened.
        """
        deadline = time.monotonic() + patience
        while True:
            status = self.status
            if status is None:
                return "; nothing was ever started"
            if status.culprit is not None:
                return f"; {status.culprit} ended with code {status.exit_code}{self._logs(status.culprit)}"
            if not status.supervisor.alive():
                return f"; it is {status.state}, and its supervisor is gone{self._logs('supervisor')}"
            if time.monotonic() > deadline:
                return f"; it is {status.state}, and none of its processes has ended"
            time.sleep(_POLL)

    def stop(self) -> None:
        """End every process of the set; twice is harmless."""
        status = self.status
        if status is not None:
            if status.supervisor.alive():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(status.pid, signal.SIGTERM)
                _wait_gone(status.supervisor, timeout=_grace(self.folder) + 5.0)
            # The supervisor did this already, unless it was killed.
            end_processes(status.supervisor, grace=1.0)
        if self._process is not None:
            self._forget(self._process)

    def processes(self) -> list[psutil.Process]:
        """List the running processes of the set, the supervisor included."""
        status = self.status
        if status is None:
            return []
        own = [psutil.Process(status.pid)] if status.supervisor.alive() else []
        return own + members(status.supervisor)

    def _raise_if_failed(self, what: str) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        status = self.status
        if status is None or status.culprit is None:
            raise StartError(f"{what} is not running{self._logs('supervisor')}")
        raise StartError(
            f"{what} did not start: {status.culprit} ended with code {status.exit_code}{self._logs(status.culprit)}"
        )

    def _logs(self, *names: str) -> str:
        paths = [self.folder / f"{name}.log" for name in names] or sorted(self.folder.glob("*.log"))
        return "".join(f"\n--- {path}\n{log_tail(path)}" for path in paths if path.exists())

    def _forget(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            # It may just have started something that its status does not tell of yet: ask first, so that it cleans up.
            process.terminate()
        try:
            process.wait(_grace(self.folder) + 5.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdin is not None:
            process.stdin.close()
        self._process = None


def log_tail(path: Path, lines: int = _TAIL_LINES) -> str:
    """Return the last lines of a log.

    :param path: the log.
    :param lines: how many.
    """
    with path.open("rb") as log:
        log.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        text = log.read().decode("utf-8", errors="replace")
    return "\n".join(text.splitlines()[-lines:])


def _grace(folder: Path) -> float:
    try:
        plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Plan(folder="", services={}).grace
    return float(plan["grace"])


def _wait_gone(identity: Identity, *, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while identity.alive() and time.monotonic() < deadline:
        time.sleep(0.05)
    if identity.alive():
        with contextlib.suppress(ProcessLookupError):
            os.kill(identity.pid, signal.SIGKILL)
