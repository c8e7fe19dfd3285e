"""An Airflow plugin of the local set-up: on SQLite, the API server makes one change at a time.

Airflow logs each change that a person makes on the server's event loop, where it waits for SQLite's lock. The request
that holds the lock may need the event loop to end: both then wait until SQLite gives up, the scheduler with them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from airflow.plugins_manager import AirflowPlugin

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

__all__ = ["OneChangeAtATime", "OneChangePlugin"]

_READING = frozenset({"GET", "HEAD", "OPTIONS"})
# Changes nothing, and takes as long as the tested server likes.
_HARMLESS = "/connections/test"


class OneChangeAtATime:
    """Lets requests that change something in one by one; ASGI middleware around the whole API.

    :param app: the API.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._lock = asyncio.Lock()

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["method"] in _READING or scope["path"].endswith(_HARMLESS):
            await self._app(scope, receive, send)
            return
        async with self._lock:
            await self._app(scope, receive, send)


class OneChangePlugin(AirflowPlugin):
    """Puts the middleware in place; a home's plugins folder imports it."""

    name = "one_change_at_a_time"
    fastapi_root_middlewares: list[Any] = [  # noqa: RUF012 - declared so by Airflow
        {"name": name, "middleware": OneChangeAtATime, "args": [], "kwargs": {}}
    ]
