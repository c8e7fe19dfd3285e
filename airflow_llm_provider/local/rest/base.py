"""What all calls to Airflow's REST API share."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow_llm_provider.local.errors import LocalError
from airflow_llm_provider.local.rest.transport import Transport

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    import httpx

__all__ = ["CONFLICT", "NOT_FOUND", "POLL", "Calls", "quoted", "run_path", "wait_until"]

POLL = 0.3
NOT_FOUND = 404
CONFLICT = 409


class Calls:
    """Calls a local Airflow.

    :param url: where the API server answers.
    :param timeout: seconds for one call.
    :param login: user and password; None where every caller is an admin.
    :param transport: how requests leave, for tests; None is the network.
    :param explain: asked why nobody takes a connection; its words end the error.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float = 30.0,
        login: tuple[str, str] | None = None,
        transport: httpx.BaseTransport | None = None,
        explain: Callable[[], str] = lambda: "",
    ) -> None:
        self.url = url.rstrip("/")
        self._http = Transport(url, timeout=timeout, login=login, transport=transport, explain=explain)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def call(self, method: str, path: str, *, body: Any = None, **params: Any) -> Any:
        """Make any call below `/api/v2`.

        :param method: HTTP method.
        :param path: path below `/api/v2`.
        :param body: value sent as JSON.
        :param params: query.
        """
        return self._http.call(method, f"/api/v2{path}", body=body, params=params)


def quoted(part: str) -> str:
    """Make an id safe inside a path."""
    return quote(part, safe="")


def run_path(dag_id: str, run_id: str) -> str:
    """Return the path of a run."""
    return f"/dags/{quoted(dag_id)}/dagRuns/{quoted(run_id)}"


def wait_until(
    done: Callable[[], bool],
    *,
    timeout: float,
    what: str,
    explain: Callable[[], str] = lambda: "",
    poll: float = POLL,
) -> None:
    """Look again and again until something is done; the error says what was waited for."""
    deadline = time.monotonic() + timeout
    while not done():
        if time.monotonic() > deadline:
            raise LocalError(f"{what} after {timeout:g} s{explain()}")
        time.sleep(poll)
