"""Backfills on SQLite, which Airflow does not make in one transaction."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from airflow_llm_provider.local.errors import ApiError
from airflow_llm_provider.local.rest import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_llm_provider.local import AirflowClient


def once_unlocked(client: AirflowClient, dag_id: str, create: Callable[[], None]) -> None:
    """Create a backfill, again when on SQLite another process wrote in between, which Airflow does not endure."""

    def created() -> bool:
        try:
            # Airflow looks every half minute only whether a backfill has ended, and one that failed to begin may stay.
            for backfill in client.call("GET", "/backfills", dag_id=dag_id)["backfills"]:
                if backfill["completed_at"] is None:
                    client.call("PUT", f"/backfills/{backfill['id']}/cancel")
            create()
        except ApiError as error:
            if error.status not in {409, 500, 503}:
                raise
            return False
        except subprocess.CalledProcessError as error:
            if "database is locked" not in error.stdout + error.stderr:
                pytest.fail(error.stdout + error.stderr)
            return False
        return True

    wait_until(created, timeout=120, what="the database was locked for a backfill")
