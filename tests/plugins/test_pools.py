"""The API server's answer about a pool, without a server: who may ask, and what is told."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from airflow_llm_provider.plugins import pools
from airflow_llm_provider.plugins.pools import LLMPoolsPlugin, answer
from airflow_llm_provider.testing.dag_runs import AirflowProcess

if TYPE_CHECKING:
    from pathlib import Path


def asked(query: str) -> tuple[int, dict[str, Any]]:
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asyncio.run(answer({"type": "http", "query_string": query.encode()}, None, send))
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    return sent[0]["status"], json.loads(sent[1]["body"])


class TestAnswer:
    @pytest.mark.parametrize(
        "query",
        [
            "",
            "pool=llm",
            "pool=llm&task_instance=",
            "pool=llm&task_instance=1",
            "task_instance=12345678-1234-4678-9234-567812345678",
        ],
    )
    def test_needs_a_pool_and_a_task_instance(self, query: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pools, "_look", lambda *_: pytest.fail("the database was asked"))
        assert asked(query)[0] == 400

    def test_is_what_the_database_says(self, monkeypatch: pytest.MonkeyPatch) -> None:
        instance = uuid4()
        looked: list[Any] = []

        def look(pool: str, task_instance: Any) -> tuple[int, dict[str, Any]]:
            looked.append((pool, task_instance))
            return 200, {"pool": pool, "slots": 4}

        monkeypatch.setattr(pools, "_look", look)
        assert asked(f"pool=a+pool&task_instance={instance}") == (200, {"pool": "a pool", "slots": 4})
        assert looked == [("a pool", instance)]

    def test_refuses_a_websocket(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of anybody: the server would log an exception for each that is answered as a request."""
        sent: list[dict[str, Any]] = []

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        asyncio.run(answer({"type": "websocket", "query_string": b""}, None, send))
        assert sent == [{"type": "websocket.close"}]


class TestPlugin:
    def test_serves_below_its_own_prefix(self) -> None:
        assert [app["url_prefix"] for app in LLMPoolsPlugin.fastapi_apps] == ["/llm-pools"]


_ASK = """
import os, sqlite3, uuid
from pathlib import Path

from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy.dialects import sqlite

from airflow.api_fastapi.app import init_plugins
from airflow.models.taskinstance import TaskInstance

database = Path(os.environ["AIRFLOW_HOME"], "airflow.db")
# Made and written as this version of Airflow does it.
ids = TaskInstance.__table__.c.id
written = ids.type.dialect_impl(sqlite.dialect()).bind_processor(sqlite.dialect()) or str
running, finished = ids.default.arg(None), ids.default.arg(None)
with sqlite3.connect(database) as connection:
    columns = connection.execute("pragma table_info(task_instance)").fetchall()
    for instance, state in ((running, "running"), (finished, "success")):
        values = {"id": written(instance), "state": state, "run_id": state}
        for _, name, kind, needed, default, _ in columns:
            if needed and default is None and name not in values:
                values[name] = 0 if "INT" in kind.upper() else "x"
        marks = ", ".join("?" * len(values))
        connection.execute(f"insert into task_instance ({', '.join(values)}) values ({marks})", [*values.values()])
    connection.execute("insert into slot_pool (pool, slots, include_deferred) values ('llm', 4, 0)")
app = FastAPI()
init_plugins(app)
with TestClient(app) as client:
    for pool, instance in (("llm", running), ("none", running), ("llm", finished), ("llm", uuid.uuid4())):
        answer = client.get("/llm-pools/", params={"pool": pool, "task_instance": str(instance)})
        print("ANSWER", answer.status_code, answer.json().get("slots", "untold"))
"""


class TestMounted:
    def test_tells_only_a_running_task(self, tmp_path: Path) -> None:
        """As the API server mounts it, over a real database of Airflow; rows of other tables are not looked at."""
        environment = {
            **os.environ,
            "AIRFLOW_HOME": str(tmp_path),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{tmp_path}/airflow.db",
        }
        AirflowProcess._prepare(tmp_path / "airflow.db", environment, None)
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", _ASK],
            env=environment,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        told = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("ANSWER")]
        assert told == [["200", "4"], ["200", "None"], ["403", "untold"], ["403", "untold"]]
