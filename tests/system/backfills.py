"""Backfills on SQLite, which Airflow does not make in one transaction."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from airflow_llm_provider.local.errors import ApiError
from airflow_llm_provider.local.rest import wait_until
from airflow_llm_provider.local.rest.base import NOT_FOUND

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_llm_provider.local import AirflowClient


def cancel(client: AirflowClient, backfill_id: int) -> None:
    """Cancel a backfill, unless Airflow has removed it meanwhile, as it does with one that failed half made."""
    try:
        client.call("PUT", f"/backfills/{backfill_id}/cancel")
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise


def once_unlocked(client: AirflowClient, dag_id: str, create: Callable[[], None]) -> None:
    """Create a backfill, again when on SQLite another process wrote in between, which Airflow does not endure."""

    def created() -> bool:
        try:
            # Airflow looks every half minute only whether a backfill has ended, and one that failed to begin may stay.
            for backfill in client.call("GET", "/backfills", dag_id=dag_id)["backfills"]:
                if backfill["completed_at"] is None:
                    cancel(client, backfill["id"])
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

    wait_until(created, timeout=300, what="the database was locked for a backfill")
