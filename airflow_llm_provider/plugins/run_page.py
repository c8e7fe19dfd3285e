"""The page of a run in Airflow's UI: rows, cost, output and shards.

The page is three files that hold no data. What it shows it asks of Airflow's public REST API, from the browser, as whoever
is logged in there: who may not read a DAG's XComs sees nothing of them here either. So it needs no metadata database, no
connection and no storage, and there is no path that it could be made to read.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.plugins_manager import AirflowPlugin

from airflow_llm_provider.operators.links import PAGE_PREFIX

if TYPE_CHECKING:
    from starlette.applications import Starlette

_FILES = Path(__file__).with_name("page")
#: Nothing from elsewhere is loaded or asked, and nobody may frame the page.
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; img-src data:; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    # The files change with the package, under the same names.
    "Cache-Control": "no-cache",
}


@cache
def run_page() -> Starlette:
    """Return the application that serves the page's files and nothing else."""
    # Only the API server serves it; every task that loads plugins would pay for these.
    from starlette.applications import Starlette  # noqa: PLC0415
    from starlette.middleware import Middleware  # noqa: PLC0415
    from starlette.routing import Mount  # noqa: PLC0415
    from starlette.staticfiles import StaticFiles  # noqa: PLC0415

    class WithHeaders:
        """Adds the headers to every answer."""

        def __init__(self, app: Any) -> None:
            self._app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            async def sending(message: Any) -> None:
                if message["type"] == "http.response.start":
                    added = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
                    message = {**message, "headers": [*message["headers"], *added]}
                await send(message)

            await self._app(scope, receive, sending)

    files = StaticFiles(directory=_FILES, html=True)
    return Starlette(routes=[Mount("/", files)], middleware=[Middleware(WithHeaders)])


class _Apps:
    """Makes the application when the API server asks for it."""

    def __get__(self, instance: object, owner: type) -> list[dict[str, Any]]:
        return [{"app": run_page(), "url_prefix": PAGE_PREFIX, "name": "LLM runs"}]


class LLMRunPlugin(AirflowPlugin):
    """Serves the page to which the tasks' link ``Run summary`` leads."""

    name = "airflow_llm_provider"
    fastapi_apps: Any = _Apps()
