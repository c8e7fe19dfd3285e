"""The page of a run in Airflow's UI: rows, cost, output and shards.

The page is a few files that hold no data. What it shows it asks of Airflow's public REST API, from the browser, as whoever
is logged in there: who may not read a DAG's XComs sees nothing of them here either. So it needs no metadata database, no
connection and no storage, and there is no path that it could be made to read.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.plugins_manager import AirflowPlugin

from airflow_llm_provider.links.run_page import PAGE_PREFIX

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request

_FILES = Path(__file__).with_name("page")
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
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
    from starlette.responses import Response  # noqa: PLC0415
    from starlette.routing import Route  # noqa: PLC0415

    # Read once and looked up by name: no request ever becomes a path.
    files = {file.name: file.read_bytes() for file in _FILES.iterdir() if file.suffix in _TYPES}

    async def serve(request: Request) -> Response:
        name = request.path_params["name"] or "index.html"
        if name not in files:
            return Response(
                "There is no such file.", status_code=404, headers=_HEADERS, media_type="text/plain"
            )
        return Response(files[name], headers=_HEADERS, media_type=_TYPES[Path(name).suffix])

    return Starlette(routes=[Route("/{name:path}", serve)])


class _Apps:
    """Makes the application when the API server asks for it."""

    def __get__(self, instance: object, owner: type) -> list[dict[str, Any]]:
        return [{"app": run_page(), "url_prefix": PAGE_PREFIX, "name": "LLM runs"}]


class LLMRunPlugin(AirflowPlugin):
    """Serves the page to which the tasks' link ``Run summary`` leads."""

    name = "airflow_llm_provider"
    fastapi_apps: Any = _Apps()
