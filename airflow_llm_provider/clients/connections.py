"""Connections to one URL, over which bodies are posted."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

import aiohttp

from airflow_llm_provider.clients.direct_request import DirectRequest, can_be_direct
from airflow_llm_provider.clients.proxy import proxy_for
from airflow_llm_provider.clients.tls import ssl_context
from airflow_llm_provider.clients.transport import authorities_error, too_large_error, transport_error

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

    from yarl import URL

    from airflow_llm_provider.clients.direct_request import DirectResponse

#: Longest wait for a connection: a dead host is known long before a slow answer is.
_CONNECT_SECONDS = 30.0
#: Idle connections are given up before servers do, most of which wait five seconds: a request on a connection that the
#: server is closing is lost.
_KEEPALIVE_SECONDS = 4.0
#: A multiple of the longest completion there is. What sends more has lost its way.
_MOST_BYTES = 64 * 2**20


class HttpAnswer(NamedTuple):
    """What an endpoint answered.

    :param headers: found by name in lower case.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes


class Connections:
    """Posts bodies to one URL and keeps the connections; follows no redirects and keeps no cookies.

    They belong to the event loop of the first post.

    :param url: the URL.
    :param headers: HTTP headers of every request.
    :param limit: most connections.
    :param most_bytes: longest answer to take, once decompressed.
    :raises LLMInputError: when the environment names a proxy that cannot be used.
    """

    def __init__(
        self, url: URL, headers: Mapping[str, str], *, limit: int, most_bytes: int = _MOST_BYTES
    ) -> None:
        self.url = url
        self._headers = headers
        self._limit = limit
        self._most_bytes = most_bytes
        # Not by aiohttp, which would read the environment and netrc files for every request.
        self._proxy = proxy_for(url)
        self._session: aiohttp.ClientSession | None = None
        self._direct: DirectRequest | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    async def post(self, body: bytes) -> HttpAnswer:
        """Post a body and return the answer.

        Cancelling closes the connection: the endpoint notices, and no later request meets the rest of an answer.

        :raises CallError: when no whole answer came.
        :raises RuntimeError: when closed, or used in another event loop.
        """
        session = self._open_session()
        try:
            if self._direct is not None:
                response: DirectResponse | aiohttp.ClientResponse = await self._direct.post(body)
            else:
                response = await session.post(
                    self.url, data=body, headers=self._headers, allow_redirects=False, proxy=self._proxy
                )
            try:
                content = await self._read(response)
            except BaseException:
                response.close()
                raise
            response.release()
        except Exception as error:  # noqa: BLE001 -- whatever HTTP libraries raise ends here
            raise transport_error(error) from None
        if content is None:
            raise too_large_error(response.status, self._most_bytes)
        return HttpAnswer(response.status, response.headers, content)

    async def aclose(self) -> None:
        """Close connections."""
        self._closed = True
        if self._session is not None:
            await self._session.close()

    async def _read(self, response: DirectResponse | aiohttp.ClientResponse) -> bytes | None:
        """Read the body; ``None``: it is too long, and the connection closed."""
        chunks = []
        size = 0
        while chunk := await response.content.readany():
            chunks.append(chunk)
            size += len(chunk)
            if size > self._most_bytes:
                response.close()
                return None
        return b"".join(chunks)

    def _open_session(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        if self._session is not None and self._loop is loop and not self._closed:
            return self._session
        if self._closed:
            raise RuntimeError("the client is closed: make another one")
        if self._session is not None:
            raise RuntimeError("the client belongs to another event loop: make one for each loop")
        self._loop = loop
        connector = aiohttp.TCPConnector(
            limit=self._limit, keepalive_timeout=_KEEPALIVE_SECONDS, ssl=self._tls()
        )
        # The whole call is timed by its caller, who may send more than one request in it.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS)
        # It gets no headers of its own: it would send these to a proxy as well, and the key as a login.
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()
        )
        if can_be_direct():
            self._direct = DirectRequest(
                self.url, self._headers, proxy=self._proxy, connector=connector, timeout=timeout
            )
        return self._session

    def _tls(self) -> ssl.SSLContext | bool:
        if self.url.scheme != "https" and (self._proxy is None or self._proxy.scheme != "https"):
            return True  # none will be made
        try:
            return ssl_context()
        except OSError as error:
            raise authorities_error(error) from None
