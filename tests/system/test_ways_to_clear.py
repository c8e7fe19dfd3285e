"""Every way to clear a run or to have it tried again, and how many requests each costs: the tables of a page."""

from __future__ import annotations

import subprocess
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import dropwhile, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_llm_provider.local.rest import wait_until
from airflow_llm_provider.testing.scripted_server import Rule
from tests.system.backfills import once_unlocked
from tests.system.stage import SYSTEM, rows
from tests.system.versioned_bundle import publish

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.system.stage import Run, Stage

pytestmark = SYSTEM

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "clear-and-rerun.md"
DAGS = Path(__file__).parent / "dags" / "ways.py"
ROWS = rows(*range(4))
DAY = datetime(2026, 1, 1, tzinfo=UTC)
TASKS = ("split", "complete", "merge")
#: The server never accepts this row.
REFUSED = Rule(
    contains=ROWS[3], status=400, body={"error": {"message": "I cannot read this", "code": "invalid_prompt"}}
)


@dataclass(frozen=True, kw_only=True)
class Way:
    """What one way did.

    :param words: what was done.
    :param ran: instances that ran again, by task.
    :param requests: requests that the server saw.
    """

    words: str
    ran: Counter[str]
    requests: int

    def line(self) -> str:
        """Return the line of the table."""
        ran = (f"{self.ran[task]} `{task}`" for task in TASKS if self.ran[task])
        return f"| {self.words} | {', '.join(ran) or 'nothing'} | {self.requests} |"


@dataclass
class Ways:
    """Acts on one run again and again, and counts.

    :param run: a run that has ended.
    """

    stage: Stage
    run: Run
    found: list[Way] = field(default_factory=list)

    def measure(self, words: str, act: Callable[[], Any]) -> None:
        """Do something to the run, and wait until it has ended again."""
        before, asked = self._tries(), len(self.stage.server.requests)
        act()
        self.run.end()
        ran = Counter(task for task, _ in (self._tries() - before).elements())
        self.found.append(Way(words=words, ran=ran, requests=len(self.stage.server.requests) - asked))

    def clear(
        self, *tasks: str | tuple[str, int], downstream: bool = False, **options: Any
    ) -> Callable[[], Any]:
        """Return the call of the REST API that the UI makes for task instances."""
        ids = [f"ask.{task}" if isinstance(task, str) else [f"ask.{task[0]}", task[1]] for task in tasks]
        body = {"dry_run": False, "dag_run_id": self.run.run_id, "include_downstream": downstream}
        body |= {"only_failed": False, "task_ids": ids or None, **options}
        path = f"/dags/{self.run.dag_id}/clearTaskInstances"
        return lambda: self.stage.client.call("POST", path, body=body)

    def clear_run(self, **options: Any) -> Callable[[], Any]:
        """Return the call of the REST API that the UI makes for a run."""
        path = f"/dags/{self.run.dag_id}/dagRuns/{self.run.run_id}/clear"
        return lambda: self.stage.client.call("POST", path, body={"dry_run": False, **options})

    def command(self, *words: str) -> Callable[[], Any]:
        """Return a command over the run's day."""
        command = self.stage.airflow.command(*words, self.run.dag_id, "--yes")
        command += ["--start-date", DAY.isoformat(), "--end-date", DAY.isoformat()]
        env = self.stage.airflow.environment
        return lambda: subprocess.run(command, env=env, capture_output=True, timeout=300, check=True)

    def backfill(self, reprocess: str) -> Callable[[], Any]:
        """Return a backfill of the run's day."""
        dag_id, params = self.run.dag_id, parameters(self.stage)

        def create() -> None:
            self.stage.client.create_backfill(dag_id, start=DAY, end=DAY, reprocess=reprocess, params=params)

        return lambda: once_unlocked(self.stage.client, dag_id, create)

    def _tries(self) -> Counter[tuple[str, int]]:
        return Counter({key: ti.try_number for key, ti in self.run.tasks().items()})


def parameters(stage: Stage) -> dict[str, Any]:
    """Return the params of a run over the stage's dataset."""
    return {
        "source": str(stage.source),
        "destination": f"file://{stage.destination}",
        "conn_id": stage.name,
    }


def first_run(stage: Stage, dag_id: str, **params: Any) -> Ways:
    """Run once, and count that as well."""
    stage.client.wait_for_dag(dag_id)
    stage.client.unpause(dag_id)
    run = stage.trigger(dag_id, params=parameters(stage) | params, logical_date=None if params else DAY)
    return Ways(stage, run)


def ways_of_a_failed_run(stage: Stage) -> list[Way]:
    stage.write(ROWS)
    stage.server.script(REFUSED)
    ways = first_run(stage, "ways_failed")
    ways.run.end()
    one = ("complete", 1)
    ways.measure("the failed instance alone", ways.clear(one))
    ways.measure("the failed instance, *Downstream*", ways.clear(one, downstream=True))
    ways.measure("`complete`, *Downstream*", ways.clear("complete", downstream=True))
    ways.measure("`split` alone", ways.clear("split"))
    ways.measure("`split`, *Downstream*", ways.clear("split", downstream=True))
    ways.measure("`airflow tasks clear --only-failed`", ways.command("tasks", "clear", "--only-failed"))
    ways.measure("the run, *Clear only failed tasks*", ways.clear_run(only_failed=True))
    ways.measure("the run", ways.clear_run())
    ways.measure("backfill, `none`", ways.backfill("none"))
    ways.measure("backfill, `failed`", ways.backfill("failed"))
    ways.measure("backfill, `completed`", ways.backfill("completed"))
    return ways.found


def ways_of_a_green_run(stage: Stage) -> list[Way]:
    stage.write(ROWS[:2])
    ways = first_run(stage, "ways_green")
    assert ways.run.end() == "success"
    ways.measure("`merge`", ways.clear("merge"))
    newest(stage, "2")
    ways.measure("after a change of the prompt: the run", ways.clear_run())
    ways.measure(
        "after a change of the prompt: `complete`, *Downstream*, *Run with latest bundle version*",
        ways.clear("complete", downstream=True, run_on_latest_version=True),
    )
    ways.measure(
        "after a change of the prompt: the run, *Run with latest bundle version*",
        ways.clear_run(run_on_latest_version=True),
    )
    ways.measure("backfill, `failed`", ways.backfill("failed"))
    newest(stage, "3")
    ways.measure("after a change of the prompt: backfill, `completed`", ways.backfill("completed"))
    return [*ways.found, *start_over(stage)]


def newest(stage: Stage, version: str) -> None:
    """Change the prompt in the DAG file."""
    source = DAGS.read_text(encoding="utf-8").replace("Version 1", f"Version {version}")
    publish(stage.folder.parent / "versions", version, DAGS.name, source)
    wait_until(
        lambda: stage.client.call("GET", "/dags/ways_green")["bundle_version"] == version,
        timeout=300,
        what=f"version {version} of the DAG file is not parsed",
        poll=1.0,
    )


def start_over(stage: Stage) -> list[Way]:
    """Start over in another run, with a request that fails once."""
    stage.server.script(Rule(contains=ROWS[1], status=500, times=1))
    run = first_run(stage, "ways_green", start_over=True).run
    assert run.end() == "success"
    assert run.shard().try_number == 2
    retried = run.shard_state().requests
    every, one = Counter(split=1, complete=1, merge=1), Counter(complete=1)
    return [
        Way(
            words="another run, with `start_over`",
            ran=every,
            requests=len(stage.server.requests) - retried,
        ),
        Way(words="Airflow's own retry, of a shard that lacks one answer", ran=one, requests=retried),
    ]


def table(heading: str) -> list[str]:
    """Return the lines of the first table below a heading of the page."""
    below = PAGE.read_text(encoding="utf-8").partition(f"### {heading}\n")[2].splitlines()
    rest = dropwhile(lambda line: not line.startswith("|"), below)
    return list(takewhile(lambda line: line.startswith("|"), rest))[2:]


class TestAFailedRun:
    scene = staticmethod(ways_of_a_failed_run)

    def test_every_way_costs_what_the_page_says(self, facts: list[Way]) -> None:
        assert table("A failed run") == [way.line() for way in facts]


@pytest.mark.soak
class TestAGreenRun:
    scene = staticmethod(ways_of_a_green_run)

    def test_every_way_costs_what_the_page_says(self, facts: list[Way]) -> None:
        assert table("A green run") == [way.line() for way in facts]
