"""`docker-compose.yaml` at work: its own commands and environment, real PostgreSQL and Redis, two Celery workers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import redis

from airflow_llm_provider.dataset import read_results
from airflow_llm_provider.local.tickets import sample_tickets
from tests.system.stage import SYSTEM, Run

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_llm_provider.local import AirflowClient
    from airflow_llm_provider.testing.scripted_server import ScriptedServer
    from tests.compose.topology import Topology

pytestmark = SYSTEM

#: As many as four shards of two requests each.
SLOTS = 8
SHARDS = 4
#: Seconds in which the limits of a minute apply in proportion, so that the test need not last for minutes.
WINDOW = 5.0
REQUESTS, TOKENS = 12, 2_000


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
