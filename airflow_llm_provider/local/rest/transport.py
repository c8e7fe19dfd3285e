"""HTTP to a local Airflow: log in, ask again when a token is stale, and turn every refusal into an `ApiError`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx

from airflow_llm_provider.local.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Transport"]

_EXCERPT = 600
_PAGE = 100


class Transport:
    """One connection to a local Airflow.

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
        # trust_env would send calls for this machine to a proxy of the internet.
        self._http = httpx.Client(base_url=self.url, timeout=timeout, trust_env=False, transport=transport)
        self._explain = explain
        self._login = login
        self._token: str | None = None

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def call(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        params: dict[str, Any] | None = None,
        accept: str = "application/json",
    ) -> Any:
        """Make one call and return its decoded body, None when it is empty.

        :param method: HTTP method.
        :param path: path below the server's address.
        :param body: value sent as JSON.
        :param params: query; values of None are left out.
        :param accept: content type wanted; anything but JSON is returned as text.
        """
        query = {name: value for name, value in (params or {}).items() if value is not None}
        response = self._send(method, path, body, query, accept)
        if response.status_code == httpx.codes.UNAUTHORIZED:
            # Tokens end after a day, and a restarted home may have other keys.
            self._token = None
            response = self._send(method, path, body, query, accept)
        if not response.is_success:
            raise ApiError(method, path, response.status_code, response.text[:_EXCERPT])
        if not response.content:
            return None
        return response.json() if accept == "application/json" else response.text

    def pages(self, path: str, key: str, **params: Any) -> list[dict[str, Any]]:
        """Collect a listing that comes in pages.

        :param path: path of the listing.
        :param key: field of the body that holds the entries.
        :param params: query.
        """
        entries: list[dict[str, Any]] = []
        while True:
            page = self.call("GET", path, params={**params, "limit": _PAGE, "offset": len(entries)})
            entries += page[key]
            if not page[key] or len(entries) >= page["total_entries"]:
                return entries

    def _send(self, method: str, path: str, body: Any, query: dict[str, Any], accept: str) -> httpx.Response:
        try:
            if self._token is None:
                self._token = self._log_in()
            return self._http.request(
                method,
                path,
                params=query,
                content=None if body is None else json.dumps(body),
                headers={
                    "Authorization": f"Bearer {self._token}",
                    "Content-Type": "application/json",
                    "Accept": accept,
                },
            )
        except httpx.HTTPError as error:
            reason = self._explain() if isinstance(error, httpx.ConnectError) else ""
            raise ApiError(method, path, None, f"{type(error).__name__}: {error}{reason}") from error

    def _log_in(self) -> str:
        method, body = "GET", None
        if self._login is not None:
            method, body = "POST", {"username": self._login[0], "password": self._login[1]}
        response = self._http.request(method, "/auth/token", json=body)
        if not response.is_success:
            raise ApiError(method, "/auth/token", response.status_code, response.text[:_EXCERPT])
        return str(response.json()["access_token"])
