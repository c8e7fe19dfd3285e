"""The process between us and the services: it starts them, notices a death, and ends them all with itself.

It holds the reading end of a pipe as its standard input. When whoever started it dies, even by SIGKILL, the pipe
closes and everything stops. A detached set (`make up`) has no such pipe and runs until it gets SIGTERM.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_llm_provider.local.services.processes import Identity, adopt_orphans, end_processes

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["Plan", "Status", "main"]

_STDIN = 0
_BURIAL = 5.0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to run.

    :param folder: where status and logs go.
    :param prepare: commands by name, run one after the other before the services.
    :param services: commands by name; when one of them ends, all end.
    :param keep: whether to go on without the process that started the supervisor.
    :param grace: seconds between asking processes to end and killing them.
    :param restarts: how often, all services together, one that ends is started again instead of ending all.
    :param settled: seconds that a service must have run for that; one that ends earlier has failed to start.
    """

    folder: str
    services: dict[str, list[str]]
    prepare: dict[str, list[str]] = field(default_factory=dict)
    keep: bool = False
    grace: float = 5.0
    restarts: int = 0
    settled: float = 10.0

    @property
    def status_file(self) -> Path:
        """Where the supervisor tells how things are."""
        return Path(self.folder, "status.json")

    def log_file(self, name: str) -> Path:
        """Where one command's output goes."""
        return Path(self.folder, f"{name}.log")


@dataclass(frozen=True, kw_only=True)
class Status:
    """How the set is.

    :param pid: process number of the supervisor.
    :param created: start of the supervisor, see `Identity`.
    :param state: preparing, running, stopping, stopped or failed.
    :param services: process numbers by name.
    :param culprit: the command that ended too early.
    :param exit_code: how it ended; negative is a signal.
    :param restarts: services that ended and were started again.
    """

    pid: int
    created: float
    state: str
    services: dict[str, int] = field(default_factory=dict)
    culprit: str | None = None
    exit_code: int | None = None
    restarts: int = 0

    @classmethod
    def read(cls, path: Path) -> Status | None:
        """Read the status of a folder, None when nothing was ever started there."""
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None

    @property
    def supervisor(self) -> Identity:
        """The supervisor's identity."""
        return Identity(pid=self.pid, created=self.created)


class _Supervisor:
    """Runs one plan; owns the only `waitpid` of the process."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._self = Identity.of(os.getpid())
        self._stop = False
        self._restarts = 0
        self._running: dict[int, str] = {}
        self._wakeup, write = os.pipe()
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_stop)
        # Any Python handler makes SIGCHLD write to the pipe above.
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)

    def run(self) -> int:
        """Run the plan until it is stopped or a command ends too early, and return the exit code."""
        # Before the first command: who knows of no supervisor can only kill it, and leaves what it has started.
        self._write("preparing")
        ended = self._prepare()
        if ended is None and not self._stop:
            ended = self._serve()
        told: dict[str, Any] = {} if ended is None else {"culprit": ended[0], "exit_code": ended[1]}
        # At once, for whoever wonders why nobody answers any more.
        self._write("stopping", **told)
        end_processes(self._self, grace=self._plan.grace, services=frozenset(self._running))
        _bury_children()
        self._write("failed" if told else "stopped", **told)
        return 1 if told else 0

    def _serve(self) -> tuple[str, int] | None:
        """Run the services until the word to stop (None), or until one ends that is not started again."""
        services = {name: self._spawn(name, argv) for name, argv in self._plan.services.items()}
        began = dict.fromkeys(services, time.monotonic())
        while True:
            self._write("running", services=services, restarts=self._restarts)
            ended = self._wait_for(any_of=set(services.values()))
            if ended is None:
                return None
            name, _ = ended
            now = time.monotonic()
            if self._restarts == self._plan.restarts or now - began[name] < self._plan.settled:
                return ended
            self._restarts += 1
            began[name] = now
            services[name] = self._spawn(name, self._plan.services[name], append=True)

    def _prepare(self) -> tuple[str, int] | None:
        for name, argv in self._plan.prepare.items():
            ended = self._wait_for(any_of={self._spawn(name, argv)})
            if ended is None or ended[1] != 0:
                return ended
        return None

    def _spawn(self, name: str, argv: list[str], *, append: bool = False) -> int:
        log = os.fspath(self._plan.log_file(name))
        kept = os.O_APPEND if append else os.O_TRUNC
        pid = os.posix_spawn(
            argv[0],
            argv,
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | kept, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
        )
        self._running[pid] = name
        return pid

    def _wait_for(self, *, any_of: set[int]) -> tuple[str, int] | None:
        """Wait for the first of some children to end, or for the word to stop (None)."""
        while not self._stop:
            while child := self._reap():
                pid, code = child
                name = self._running.pop(pid, None)
                if pid in any_of and name is not None:
                    return name, code
            self._sleep()
        return None

    @staticmethod
    def _reap() -> tuple[int, int] | None:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return None
        return (pid, os.waitstatus_to_exitcode(status)) if pid else None

    def _sleep(self) -> None:
        watched = [self._wakeup] if self._plan.keep else [self._wakeup, _STDIN]
        ready, _, _ = select.select(watched, [], [])
        if self._wakeup in ready:
            os.read(self._wakeup, 4096)
        if _STDIN in ready and not os.read(_STDIN, 4096):
            self._stop = True

    def _on_stop(self, _number: int, _frame: FrameType | None) -> None:
        self._stop = True

    def _write(self, state: str, **changes: Any) -> None:
        status = Status(pid=self._self.pid, created=self._self.created, state=state, **changes)
        path = self._plan.status_file
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(asdict(status)), encoding="utf-8")
        temporary.replace(path)


def _bury_children() -> None:
    """Wait for the last threads of killed children: init may take long to bury what we leave to it."""
    deadline = time.monotonic() + _BURIAL
    while time.monotonic() < deadline:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            time.sleep(0.01)


def main(plan_file: str) -> int:
    """Run the plan of a file, as the leader of a session of its own."""
    plan = Plan(**json.loads(Path(plan_file).read_text(encoding="utf-8")))
    adopt_orphans()
    return _Supervisor(plan).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
