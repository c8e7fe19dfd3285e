"""`docker-compose.yaml` at work: its own commands and environment, real PostgreSQL and Redis, two Celery workers."""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import redis

from airflow_llm_provider.dataset import read_results
from airflow_llm_provider.local.rest import wait_until
from airflow_llm_provider.starter.tickets import sample_tickets
from airflow_llm_provider.testing.scripted_server import Rule
from tests.system.stage import SYSTEM, Run, asked, echoes, rows

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_llm_provider.local import AirflowClient
    from airflow_llm_provider.testing.scripted_server import RecordedRequest, ScriptedServer
    from tests.compose.container import Container
    from tests.compose.topology import Topology

pytestmark = SYSTEM

#: As many as four shards of two requests each.
SLOTS = 8
SHARDS = 4
CONCURRENCY = 2
#: Seconds in which the limits of a minute apply in proportion, so that the test need not last for minutes.
WINDOW = 5.0
REQUESTS, TOKENS = 12, 2_000
ROWS = rows(*range(24))
#: Seconds that are shorter than the timeout of a request, and longer than a disturbance.
_LATE = 45.0


def of_shards(client: AirflowClient, run: Run, state: str) -> dict[int, int]:
    """Process numbers of the shards' tasks in a state, by map index."""
    return {
        index: ti.pid or 0
        for (task, index), ti in run.tasks().items()
        if task == "complete" and ti.state == state
    }


@dataclass(frozen=True, kw_only=True)
class Nightly:
    run: Run
    ended: str
    stats: dict[str, Any]
    output: list[dict[str, Any]]
    tickets: list[dict[str, Any]]


@pytest.fixture(scope="module")
def nightly(topology: Topology, client: AirflowClient, server: ScriptedServer) -> Nightly:
    """The nightly DAG over one day, with limits that are shared."""
    day = datetime(2026, 1, 5, tzinfo=UTC).date()
    tickets = [ticket for back in range(4) for ticket in sample_tickets(day - timedelta(days=back))]
    partition = topology.machine.source("data") / "tickets" / f"ds={day}"
    partition.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(tickets), partition / "tickets.parquet")
    per_minute = 60 / WINDOW
    limits = {
        "requests_per_minute": REQUESTS * per_minute,
        "tokens_per_minute": TOKENS * per_minute,
        "window": WINDOW,
    }
    client.put_connection(
        "llm_default", conn_type="llm", host=server.base_url, extra={"rate_limits": {"*": limits}}
    )
    client.put_pool("llm", SLOTS)
    client.wait_for_dag("nightly_tickets")
    server.reset()
    params = {"date": str(day), "shard_tokens": 1_050}
    run_id = client.trigger("nightly_tickets", params=params)
    client.unpause("nightly_tickets")
    run = Run(client=client, dag_id="nightly_tickets", run_id=run_id, group="label")
    return Nightly(
        run=run,
        ended=run.end(),
        stats=server.stats(),
        output=read_results(str(topology.machine.source("data") / "labels" / f"ds={day}")).to_pylist(),
        tickets=tickets,
    )


class TestNightly:
    def test_every_ticket_has_its_label_in_order(self, nightly: Nightly) -> None:
        assert nightly.ended == "success"
        assert [row["id"] for row in nightly.output] == [ticket["id"] for ticket in nightly.tickets]
        assert {row["llm_status"] for row in nightly.output} == {"success"}

    def test_its_shards_met_on_both_workers(self, nightly: Nightly, topology: Topology) -> None:
        assert nightly.run.summary().shards == SHARDS
        ran = [worker.log(10_000).count("label.complete") for worker in topology.workers]
        assert min(ran) > 0

    def test_workers_have_loaded_what_their_tasks_need(self, nightly: Nightly, topology: Topology) -> None:
        for worker in topology.workers:
            mapped = psutil.Process(worker.pid()).memory_maps()
            assert any("/libarrow.so" in file.path for file in mapped), worker.name

    def test_C4_the_limits_are_kept_where_every_machine_finds_them(
        self, nightly: Nightly, topology: Topology
    ) -> None:
        with redis.Redis.from_url(topology.secret("limiter_url")) as limiter:
            assert list(limiter.scan_iter("airflow-llm-limits:*"))

    def test_C4_all_shards_together_keep_to_the_limits(self, nightly: Nightly) -> None:
        # Those of the schedule's own run, which unpausing begins, are among them.
        assert nightly.stats["answered"] >= len(nightly.tickets)
        assert nightly.stats["peak_requests"] <= REQUESTS
        assert nightly.stats["peak_tokens"] <= TOKENS


@dataclass(frozen=True, kw_only=True)
class Late:
    run_id: str
    said: list[str]


@pytest.fixture(scope="module")
def late(nightly: Nightly, topology: Topology, client: AirflowClient) -> Late:
    """A run that has missed its deadline from the start."""
    client.wait_for_dag("late")
    client.unpause("late")
    run_id = client.trigger("late")
    notice = topology.machine.source("data") / "late.txt"
    wait_until(
        lambda: notice.exists() and notice.stat().st_size > 0,
        timeout=300,
        what="nobody was called of the missed deadline",
        explain=topology.logs,
        poll=0.2,
    )
    return Late(run_id=run_id, said=notice.read_text(encoding="utf-8").splitlines())


class TestLate:
    def test_a_worker_says_which_run_is_late(self, late: Late, topology: Topology) -> None:
        which, when, where = late.said
        assert which == f"late · {late.run_id}"
        assert when.startswith("late: the run was to end by 20")
        assert where in [worker.name for worker in topology.workers]


@dataclass(frozen=True, kw_only=True)
class Disturbed:
    run: Run
    ended: str
    before: list[RecordedRequest]
    after: list[RecordedRequest]
    lost: set[int]
    tries: dict[int, int]
    output: list[dict[str, Any]]


@pytest.fixture(scope="module")
def disturbed(
    nightly: Nightly, topology: Topology, client: AirflowClient, server: ScriptedServer
) -> Disturbed:
    """A run in whose midst one worker is killed, and Redis, triggerer and scheduler are started anew."""
    data = topology.machine.source("data") / "spread"
    data.mkdir()
    table = pa.table({"text": pa.array(ROWS, pa.string()), "id": pa.array(range(len(ROWS)), pa.int64())})
    pq.write_table(table, data / "rows.parquet")
    client.put_connection("llm_default", conn_type="llm", host=server.base_url)
    client.wait_for_dag("spread")
    client.unpause("spread")
    # A shard's first two rows are answered at once, all others late enough for everything below to happen before.
    size = len(ROWS) // SHARDS
    firsts = [ROWS[first + row] for first in range(0, len(ROWS), size) for row in range(CONCURRENCY)]
    server.script(*(Rule(contains=text) for text in firsts), Rule(times=len(ROWS) - len(firsts), delay=_LATE))
    params = {
        "source": str(data / "rows.parquet"),
        "destination": f"file://{data / 'out'}",
        "conn_id": "llm_default",
        "rows_per_shard": size,
    }
    run = Run(client=client, dag_id="spread", run_id=client.trigger("spread", params=params))
    victim, survivor = topology.workers

    def waiting_at(worker: Container) -> set[int]:
        """Shards that run at a worker and wait for an answer."""
        own = {process.pid for process in worker.processes()}
        held = {
            ROWS.index(text) // size for text in asked([r for r in server.requests if r.ended_at is None])
        }
        return held & {index for index, pid in of_shards(client, run, "running").items() if pid in own}

    wait_until(
        lambda: all(map(waiting_at, (victim, survivor))),
        timeout=300,
        what="the workers do not both wait for answers",
        explain=lambda: f": {server.stats()} {run.states()}",
        poll=0.5,
    )
    own = {process.pid for process in victim.processes()}
    lost = [index for index, pid in of_shards(client, run, "running").items() if pid in own]
    victim.kill()
    before = server.requests
    for name in ("redis", "triggerer", "scheduler"):
        topology.containers[name].restart()
    # As Docker does: `restart: unless-stopped`.
    victim.start()
    ended = run.end()
    return Disturbed(
        run=run,
        ended=ended,
        before=before,
        after=server.requests[len(before) :],
        lost=set(lost),
        tries={index: ti.try_number for (task, index), ti in run.tasks().items() if task == "complete"},
        output=read_results(str(data / "out")).to_pylist(),
    )


@pytest.mark.soak
class TestDisturbed:
    def test_A27_the_run_ends_complete_and_in_order(self, disturbed: Disturbed) -> None:
        assert disturbed.ended == "success"
        assert [row["id"] for row in disturbed.output] == list(range(len(ROWS)))
        assert [row["answer"] for row in disturbed.output] == echoes(ROWS)

    def test_I1_only_what_was_in_flight_on_the_killed_worker_is_paid_twice(
        self, disturbed: Disturbed
    ) -> None:
        assert disturbed.lost
        requests = len(disturbed.before) + len(disturbed.after)
        assert requests <= len(ROWS) + len(disturbed.lost) * CONCURRENCY

    def test_only_the_killed_shards_were_tried_again(self, disturbed: Disturbed) -> None:
        assert {index for index, tries in disturbed.tries.items() if tries > 1} == disturbed.lost
        assert max(disturbed.tries.values()) == 2


@dataclass(frozen=True, kw_only=True)
class Crossing:
    ended: set[str]
    asked: list[str]


@pytest.fixture(scope="module")
def crossing(
    disturbed: Disturbed, topology: Topology, client: AirflowClient, server: ScriptedServer
) -> Crossing:
    """A run of today comes when a backfill of the past has the only slot, and more shards that wait for it."""
    folder = topology.machine.source("data") / "crossing"
    folder.mkdir()

    def params(name: str, texts: list[str]) -> dict[str, Any]:
        source = folder / f"{name}.parquet"
        pq.write_table(pa.table({"text": texts}), source)
        paths = {"source": str(source), "destination": f"file://{folder / name}"}
        return {**paths, "conn_id": "llm_default", "rows_per_shard": 1}

    def waiting(run: Run, count: int) -> bool:
        return len(of_shards(client, run, "scheduled")) == count

    client.put_pool("one", 1)
    client.wait_for_dag("crossing")
    server.script(Rule(times=1, delay=120))
    first = datetime(2026, 1, 1, tzinfo=UTC)
    client.create_backfill("crossing", start=first, end=first, params=params("past", ["p0", "p1", "p2"]))
    client.unpause("crossing")
    [run_id] = [run["dag_run_id"] for run in client.runs("crossing") if run["run_type"] == "backfill"]
    past = Run(client=client, dag_id="crossing", run_id=run_id)
    wait_until(
        lambda: server.stats()["in_flight"] == 1, timeout=300, what="the backfill has not begun", poll=0.5
    )
    today = client.trigger("crossing", params=params("today", ["today"]), logical_date=datetime.now(UTC))
    tonight = Run(client=client, dag_id="crossing", run_id=today)
    wait_until(
        lambda: waiting(tonight, 1) and waiting(past, 2),
        timeout=300,
        what="not all shards wait for the slot",
        explain=lambda: f": {past.states()} {tonight.states()}",
        poll=0.5,
    )
    server.script()
    [pid] = of_shards(client, past, "running").values()
    os.kill(pid, signal.SIGKILL)
    return Crossing(ended={tonight.end(), past.end()}, asked=asked(server.requests))


@pytest.mark.soak
class TestCrossing:
    def test_A20_a_backfill_leaves_the_next_free_slot_to_the_run_of_today(self, crossing: Crossing) -> None:
        assert crossing.asked[0] == "today"
        assert sorted(crossing.asked[1:]) == ["p0", "p1", "p2"]
        assert crossing.ended == {"success"}


@pytest.mark.soak
class TestServices:
    def test_are_healthy_by_their_own_checks(self, topology: Topology, disturbed: Disturbed) -> None:
        # The wheel with Redis has no client program.
        checked = [
            each for each in topology.containers.values() if each.service.health and each.name != "redis"
        ]
        assert len(checked) == 7
        with ThreadPoolExecutor(2) as pool:
            ended = dict(zip(checked, pool.map(lambda each: each.health(), checked), strict=True))
        assert {each.name: done.stderr for each, done in ended.items() if done.returncode} == {}


class TestSecrets:
    def test_are_in_no_log_and_no_output(self, topology: Topology, nightly: Nightly) -> None:
        names = ("fernet_key", "jwt_secret", "postgres_password", "redis_password", "admin_password")
        secrets = [topology.secret(name) for name in names]
        found = [
            path
            for folder in ("logs", "data")
            for path in self.files(topology.machine.source(folder))
            if any(secret.encode() in path.read_bytes() for secret in secrets)
        ]
        assert found == []
        told = topology.logs() + json.dumps(topology.said)
        assert [name for name, secret in zip(names, secrets, strict=True) if secret in told] == []

    @staticmethod
    def files(folder: Path) -> list[Path]:
        return [path for path in folder.rglob("*") if path.is_file()]

    def test_the_key_reached_the_connection_and_nothing_else(
        self, topology: Topology, nightly: Nightly
    ) -> None:
        environments = {
            name: each.environment
            for name, each in topology.containers.items()
            if "LLM_API_KEY" in each.environment
        }
        assert set(environments) == {"init"}
