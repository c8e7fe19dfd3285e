"""Backfills, asset events, connections and pools."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from airflow_llm_provider.local.errors import ApiError
from airflow_llm_provider.local.rest.base import CONFLICT, Calls, quoted, wait_until

if TYPE_CHECKING:
    from datetime import datetime

__all__ = ["ObjectCalls"]


class ObjectCalls(Calls):
    """Calls about what belongs to no run."""

    def create_backfill(
        self,
        dag_id: str,
        *,
        start: datetime,
        end: datetime,
        reprocess: str = "none",
        params: dict[str, Any] | None = None,
        max_active_runs: int = 1,
    ) -> int:
        """Create a backfill and return its id.

        On SQLite Airflow refuses, and may leave a backfill without runs behind, when another process writes meanwhile.

        :param dag_id: the DAG.
        :param start: first date, included.
        :param end: last date, included.
        :param reprocess: which existing runs to run again: none, failed or completed.
        :param params: the runs' params.
        :param max_active_runs: runs at once.
        """
        body = {
            "dag_id": dag_id,
            "from_date": start.isoformat(),
            "to_date": end.isoformat(),
            "reprocess_behavior": reprocess,
            "dag_run_conf": params or {},
            "max_active_runs": max_active_runs,
        }
        return int(self.call("POST", "/backfills", body=body)["id"])

    def wait_for_backfill(self, backfill_id: int, *, timeout: float = 180.0) -> None:
        """Wait until all runs of a backfill have ended.

        :param backfill_id: the backfill.
        :param timeout: seconds.
        """
        wait_until(
            lambda: self.call("GET", f"/backfills/{backfill_id}")["completed_at"] is not None,
            timeout=timeout,
            what=f"backfill {backfill_id} has not ended",
        )

    def asset_events(self, **filters: Any) -> list[dict[str, Any]]:
        """List asset events.

        :param filters: for example `source_dag_id` and `source_run_id`.
        """
        return self._http.pages("/api/v2/assets/events", "asset_events", **filters)

    def put_connection(
        self,
        conn_id: str,
        *,
        conn_type: str,
        host: str | None = None,
        password: str | None = None,
        extra: dict[str, Any] | None = None,
    ) -> None:
        """Create a connection, or replace it.

        :param conn_id: its id.
        :param conn_type: its type.
        :param host: host or base URL.
        :param password: key.
        :param extra: the type's own fields.
        """
        body = {
            "connection_id": conn_id,
            "conn_type": conn_type,
            "host": host,
            "password": password,
            # Airflow takes "{}" for a secret, and warns in every task's log that it is too short to be masked.
            "extra": json.dumps(extra) if extra else None,
        }
        self._put("/connections", conn_id, body)

    def put_pool(
        self, name: str, slots: int, *, description: str = "", include_deferred: bool = False
    ) -> None:
        """Create a pool, or change it.

        :param name: its name.
        :param slots: its size.
        :param description: what it is for.
        :param include_deferred: whether deferred tasks hold their slots.
        """
        fields = {"slots": slots, "description": description, "include_deferred": include_deferred}
        self._put("/pools", name, {"name": name, **fields}, patch={"pool": name, **fields})

    def _put(
        self, path: str, name: str, body: dict[str, Any], *, patch: dict[str, Any] | None = None
    ) -> None:
        try:
            self.call("POST", path, body=body)
        except ApiError as error:
            if error.status != CONFLICT:
                raise
            self.call("PATCH", f"{path}/{quoted(name)}", body=patch or body)
