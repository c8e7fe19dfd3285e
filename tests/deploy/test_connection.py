"""What a later start of docker-compose.yaml does to what somebody has set in the UI meanwhile, in a real database of Airflow."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from cryptography.fernet import Fernet

if TYPE_CHECKING:
    from pathlib import Path

_STARTS = """
import json, os
from airflow import settings
from airflow.models.base import Base
from airflow.models.connection import Connection
from airflow.models.pool import Pool
from airflow.utils.session import create_session
from airflow_llm_provider.deploy.__main__ import main

Base.metadata.create_all(settings.engine)

def start():
    assert main(["pools"]) == main(["connection"]) == 0
    with create_session() as session:
        found = session.query(Connection).one()
        pools = {pool.pool: (pool.slots, pool.include_deferred) for pool in session.query(Pool)}
        told = (found.conn_id, found.conn_type, found.host, found.password, found.extra, found.description)
    print("FOUND", json.dumps([*told, pools]))

start()
with create_session() as session:
    session.query(Connection).one().extra = json.dumps({"requests_per_minute": 5})
    session.query(Connection).one().description = "mine"
    session.query(Pool).filter(Pool.pool == "llm").one().slots = 64
os.environ.update(LLM_BASE_URL="http://new/v1", LLM_API_KEY="key-2")
start()
"""


class TestLaterStarts:
    def test_leave_what_the_environment_does_not_say(self, tmp_path: Path) -> None:
        environment = {
            **os.environ,
            "AIRFLOW_HOME": str(tmp_path),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{tmp_path}/airflow.db",
            "AIRFLOW__CORE__FERNET_KEY": Fernet.generate_key().decode(),
            "LLM_BASE_URL": "http://old/v1",
            "LLM_API_KEY": "key-1",
            "LLM_MODEL": "m",
        }
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", _STARTS],
            env=environment,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        first, second = (line for line in done.stdout.splitlines() if line.startswith("FOUND"))
        assert first == (
            'FOUND ["llm_default", "llm", "http://old/v1", "key-1", null, null, {"llm": [4, true]}]'
        )
        assert second == (
            'FOUND ["llm_default", "llm", "http://new/v1", "key-2", "{\\"requests_per_minute\\": 5}", "mine", '
            '{"llm": [64, true]}]'
        )
        # The key is encrypted, and told to nobody.
        assert b"key-2" not in (tmp_path / "airflow.db").read_bytes()
        assert not any("key-" in line for line in done.stdout.splitlines() if not line.startswith("FOUND"))
