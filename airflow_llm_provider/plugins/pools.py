"""Tells a running task how large a pool is, which Airflow tells to no task.

The API server answers ``GET /llm-pools/?pool=…&task_instance=…`` to whoever knows the id of a task instance that is running:
a UUID with more than 60 random bits, which only the task itself and readers of its DAG know. All that it ever says is the number of slots of one pool.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs
from uuid import UUID

from airflow.plugins_manager import AirflowPlugin

from airflow_llm_provider.operators.pools import POOLS_PREFIX
from airflow_llm_provider.scheduling.priority import BackfillLast

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    Send = Callable[[dict[str, Any]], Awaitable[None]]

__all__ = ["LLMPoolsPlugin", "answer"]

_OK, _BAD_REQUEST, _FORBIDDEN = 200, 400, 403


async def answer(scope: Mapping[str, Any], _receive: object, send: Send) -> None:
    """Answer one request: an ASGI application."""
    if scope["type"] != "http":
        await send({"type": "websocket.close"})
        return
    query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
    try:
        pool, instance = query["pool"][0], UUID(query["task_instance"][0])
    except (KeyError, ValueError):
        await _send(send, _BAD_REQUEST, {"error": "give pool and task_instance"})
        return
    # The database is asked in a thread: nothing may hold up the server's loop.
    status, found = await asyncio.to_thread(_look, pool, instance)
    await _send(send, status, found)


def _look(pool: str, instance: UUID) -> tuple[int, dict[str, Any]]:
    # Only the API server comes here, which may ask the database; everything else that loads plugins need not pay for it.
    from airflow.models.pool import Pool  # noqa: PLC0415, TID251
    from airflow.models.taskinstance import TaskInstance  # noqa: PLC0415, TID251
    from airflow.utils.session import create_session  # noqa: PLC0415, TID251
    from sqlalchemy import select  # noqa: PLC0415

    # A UUID in newer Airflow, and text in Airflow 3.1, which a UUID never equals.
    known = TaskInstance.id.type.python_type(str(instance))
    with create_session() as session:
        state = session.scalar(select(TaskInstance.state).where(TaskInstance.id == known))
        if state != "running":
            return _FORBIDDEN, {"error": "no such task is running"}
        slots = session.scalar(select(Pool.slots).where(Pool.pool == pool))
    return _OK, {"pool": pool, "slots": slots}


async def _send(send: Send, status: int, body: dict[str, Any]) -> None:
    headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(body).encode()})


class LLMPoolsPlugin(AirflowPlugin):
    """Tells tasks about their pool, and the scheduler about backfills."""

    name = "airflow_llm_provider_pools"
    fastapi_apps: Any = [{"app": answer, "url_prefix": POOLS_PREFIX, "name": "LLM pools"}]  # noqa: RUF012 -- Airflow's own
    priority_weight_strategies: Any = [BackfillLast]  # noqa: RUF012 -- as above
