"""Supervised processes, with small commands in place of Airflow."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil
import pytest

from airflow_llm_provider.local.errors import StartError
from airflow_llm_provider.local.rest import wait_until
from airflow_llm_provider.local.services.ports import free_port
from airflow_llm_provider.local.services.processes import Identity
from airflow_llm_provider.local.services.service_set import ServiceSet, log_tail
from airflow_llm_provider.local.services.supervisor import Plan, Status

if TYPE_CHECKING:
    from pathlib import Path

#: Seconds for what takes a fraction of one unless the machine is busy.
PATIENCE = 60.0
# Forks a child into a process group of its own, as Airflow does with tasks, and says so.
FORKING = """
import os, sys, time
if os.fork() == 0:
    os.setpgid(0, 0)
    open(sys.argv[1], "w").close()
    time.sleep(600)
time.sleep(600)
"""
STUBBORN = """
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(sys.argv[1], "w").close()
time.sleep(600)
"""


def python(code: str, *args: str) -> list[str]:
    return [sys.executable, "-c", code, *args]


@pytest.fixture
def services(tmp_path: Path):
    found = ServiceSet(tmp_path / "run here")
    yield found
    found.stop()


def start(services: ServiceSet, *, keep: bool = False, grace: float = 5.0, **commands: list[str]) -> None:
    services.start(Plan(folder="", services=commands, keep=keep, grace=grace), env=os.environ)


class TestServiceSet:
    def test_the_supervisor_is_known_before_it_starts_anything(self, services: ServiceSet) -> None:
        start(services, absent=["/nowhere/to/be/found"])
        with pytest.raises(StartError, match="the service is not running"):
            services.wait_until(lambda: True, timeout=PATIENCE, what="the service")
        assert services.status is not None
        assert services.status.state == "preparing"

    def test_what_is_stopped_as_soon_as_it_starts_leaves_nothing(self, services: ServiceSet) -> None:
        start(services, parent=python("import time; time.sleep(600)"))
        services.stop()
        assert services.processes() == []

    def test_a_forked_grandchild_in_its_own_group_ends_too(
        self, services: ServiceSet, tmp_path: Path
    ) -> None:
        ready = tmp_path / "ready"
        start(services, parent=python(FORKING, str(ready)))
        services.wait_until(ready.exists, timeout=PATIENCE, what="the child")
        processes = services.processes()
        assert len(processes) == 3

        services.stop()

        assert services.processes() == []
        assert not any(process.is_running() for process in processes)
        assert services.status is not None
        assert services.status.state == "stopped"

    def test_a_process_that_ignores_sigterm_is_killed(self, services: ServiceSet, tmp_path: Path) -> None:
        ready = tmp_path / "ready"
        start(services, grace=0.2, stubborn=python(STUBBORN, str(ready)))
        services.wait_until(ready.exists, timeout=PATIENCE, what="the stubborn one")

        services.stop()

        assert services.processes() == []

    def test_stopping_twice_or_what_never_ran_is_harmless(self, services: ServiceSet) -> None:
        services.stop()
        start(services, sleeper=python("import time; time.sleep(600)"))
        services.wait_until(lambda: True, timeout=PATIENCE, what="the sleeper")
        services.stop()
        services.stop()
        assert not services.alive

    def test_a_service_that_ends_takes_the_others_along_and_is_named(self, services: ServiceSet) -> None:
        start(
            services,
            good=python("import time; time.sleep(600)"),
            bad=python("print('no such table'); raise SystemExit(3)"),
        )

        with pytest.raises(
            StartError, match=r"(?s)the pair did not start: bad ended with code 3\n.*no such table"
        ):
            services.wait_until(lambda: False, timeout=PATIENCE, what="the pair")

        assert services.processes() == []

    def test_a_service_that_ends_later_is_named_while_the_others_still_end(
        self, services: ServiceSet, tmp_path: Path
    ) -> None:
        go, ready = tmp_path / "go", tmp_path / "ready"
        dying = (
            "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.01)\n"
            "print('database is locked'); raise SystemExit(3)"
        )
        start(services, grace=600.0, stubborn=python(STUBBORN, str(ready)), bad=python(dying, str(go)))
        services.wait_until(ready.exists, timeout=PATIENCE, what="the stubborn one")
        assert services.obituary(patience=0) == "; it is running, and none of its processes has ended"

        go.touch()

        told = services.obituary(patience=PATIENCE)
        assert services.alive
        assert told.startswith("; bad ended with code 3\n--- ")
        assert told.endswith("database is locked")
        for process in services.processes():
            if process.pid != services.status.pid:
                process.kill()

    def test_a_settled_service_that_ends_is_started_again_as_often_as_the_plan_allows(
        self, services: ServiceSet, tmp_path: Path
    ) -> None:
        lives = tmp_path / "lives"
        dying = (
            "import os, sys, time\nopen(sys.argv[1], 'a').write('x')\nn = os.path.getsize(sys.argv[1])\n"
            "while not os.path.exists(f'{sys.argv[1]}.{n}'): time.sleep(0.01)\n"
            "print('end of life', n); raise SystemExit(n)"
        )
        plan = Plan(
            folder="",
            services={"mortal": python(dying, str(lives)), "good": python("import time; time.sleep(600)")},
            restarts=1,
            settled=0.0,
        )
        services.start(plan, env=os.environ)
        lives.with_suffix(".1").touch()
        services.wait_until(
            lambda: lives.exists() and lives.read_text() == "xx", timeout=PATIENCE, what="the second life"
        )
        # The new process may be quicker than the supervisor, which tells of it.
        wait_until(lambda: services.status.restarts == 1, timeout=PATIENCE, what="nobody tells of it")
        assert (services.status.state, services.status.culprit) == ("running", None)

        lives.with_suffix(".2").touch()

        told = services.obituary(patience=PATIENCE)
        assert told.startswith("; mortal ended with code 2\n--- ")
        # The log has both.
        assert told.endswith("end of life 1\nend of life 2")

    def test_a_service_that_ends_before_it_has_settled_is_not_started_again(
        self, services: ServiceSet
    ) -> None:
        services.start(
            Plan(folder="", services={"bad": python("raise SystemExit(3)")}, restarts=9), env=os.environ
        )
        with pytest.raises(StartError, match="bad ended with code 3"):
            services.wait_until(lambda: False, timeout=PATIENCE, what="the bad one")

    def test_an_obituary_of_what_was_never_started_or_was_killed_says_so(self, services: ServiceSet) -> None:
        assert services.obituary() == "; nothing was ever started"
        start(services, sleeper=python("import time; time.sleep(600)"))
        services.wait_until(lambda: True, timeout=PATIENCE, what="the sleeper")
        assert services.status is not None
        os.kill(services.status.pid, signal.SIGKILL)
        assert services.obituary(patience=PATIENCE).startswith("; it is running, and its supervisor is gone")

    def test_nothing_starts_when_a_preparation_fails(self, services: ServiceSet, tmp_path: Path) -> None:
        started = tmp_path / "started"
        plan = Plan(
            folder="",
            prepare={"migrate": python("raise SystemExit(1)")},
            services={"late": python("open(__import__('sys').argv[1], 'w')", str(started))},
        )
        services.start(plan, env=os.environ)

        with pytest.raises(StartError, match="migrate ended with code 1"):
            services.wait_until(lambda: True, timeout=PATIENCE, what="it")

        assert not started.exists()

    def test_a_late_service_is_reported_with_its_log(self, services: ServiceSet) -> None:
        start(services, slow=python("print('still loading', flush=True); import time; time.sleep(600)"))
        log = services.folder / "slow.log"
        services.wait_until(
            lambda: log.exists() and "loading" in log.read_text(), timeout=PATIENCE, what="a line"
        )
        with pytest.raises(StartError, match=r"(?s)it was not ready after 0 s.*still loading"):
            services.wait_until(lambda: False, timeout=0, what="it")

    def test_a_second_set_in_the_same_folder_is_refused(self, services: ServiceSet) -> None:
        start(services, sleeper=python("import time; time.sleep(600)"))
        services.wait_until(lambda: True, timeout=PATIENCE, what="the sleeper")
        with pytest.raises(StartError, match="something already runs in .*: stop it first"):
            start(ServiceSet(services.folder), sleeper=python("pass"))

    def test_another_process_finds_and_stops_a_kept_set(self, services: ServiceSet) -> None:
        code = (
            "import os, sys\n"
            "from pathlib import Path\n"
            "from airflow_llm_provider.local.services.service_set import ServiceSet\n"
            "from airflow_llm_provider.local.services.supervisor import Plan\n"
            "found = ServiceSet(Path(sys.argv[1]))\n"
            "found.start(Plan(folder='', services={'s': ['/bin/sleep', '600']}, keep=True), env=os.environ)\n"
            "found.wait_until(lambda: True, timeout=60, what='it')\n"
            "os._exit(0)\n"
        )
        subprocess.run(python(code, str(services.folder)), check=True)
        assert services.alive
        assert len(services.processes()) == 2

        services.stop()

        assert services.processes() == []

    def test_what_a_killed_supervisor_left_is_ended_before_the_next_start(
        self, services: ServiceSet, tmp_path: Path
    ) -> None:
        ready = tmp_path / "ready"
        start(services, keep=True, parent=python(FORKING, str(ready)))
        services.wait_until(ready.exists, timeout=PATIENCE, what="the child")
        status = services.status
        assert status is not None
        left = [process for process in services.processes() if process.pid != status.pid]
        os.kill(status.pid, signal.SIGKILL)
        wait_until(lambda: not services.alive, timeout=PATIENCE, what="the supervisor is not gone")

        start(services, sleeper=python("import time; time.sleep(600)"))

        _gone, alive = psutil.wait_procs(left, timeout=PATIENCE)
        assert alive == []


class TestIdentity:
    def test_a_number_given_to_another_process_is_not_ours(self) -> None:
        own = Identity.of(os.getpid())
        assert own.alive()
        assert not own.replaced()
        other = Identity(pid=os.getpid(), created=own.created - 100)
        assert not other.alive()
        assert other.replaced()


class TestStatus:
    def test_a_folder_without_a_file_was_never_started(self, tmp_path: Path) -> None:
        assert Status.read(tmp_path / "status.json") is None


class TestLogTail:
    def test_only_the_last_lines_are_kept(self, tmp_path: Path) -> None:
        log = tmp_path / "a.log"
        log.write_bytes(b"\n".join(b"line %d" % number for number in range(9000)) + b"\n\xff")
        assert log_tail(log, 2) == "line 8999\n�"


class TestFreePort:
    def test_ports_differ(self) -> None:
        assert len({free_port() for _ in range(5)}) > 1
