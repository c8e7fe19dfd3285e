"""A request that is the same each time but for its body, written to aiohttp's connections without being prepared anew.

A session of aiohttp takes two thirds of a request's processor time to prepare what never changes and to lead it past what
is not used here: cookies, redirects, traces, uploads in pieces. Without it aiohttp still resolves names, connects,
speaks TLS, asks proxies, keeps connections, and reads and decompresses answers.
"""

from __future__ import annotations

import asyncio
import select
from typing import TYPE_CHECKING
from weakref import WeakSet

import aiohttp
from aiohttp import ClientRequest, hdrs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiohttp.client_proto import ResponseHandler
    from aiohttp.connector import Connection
    from yarl import URL

#: What is used here has no underscore, but no promise either.
_KNOWN_VERSIONS = ("3.13.", "3.14.")
#: Statuses before the answer's own. 101 is none of them: nothing follows it that could be read.
_ANNOUNCEMENTS = frozenset(range(100, 200)) - {101}


def can_be_direct() -> bool:
    """Tell whether the installed aiohttp is one that :class:`DirectRequest` is tested with."""
    return aiohttp.__version__.startswith(_KNOWN_VERSIONS)


class DirectResponse:
    """An answer whose head has come: as much of :class:`aiohttp.ClientResponse` as it takes to read the body."""

    __slots__ = ("_connection", "_kept", "_protocol", "content", "headers", "status")

    def __init__(
        self,
        status: int,
        headers: Mapping[str, str],
        content: aiohttp.StreamReader,
        *,
        connection: Connection,
        protocol: ResponseHandler,
        kept: WeakSet[ResponseHandler],
    ) -> None:
        self.status = status
        self.headers = headers
        self.content = content
        self._connection = connection
        self._protocol = protocol
        self._kept = kept

    def release(self) -> None:
        """Keep the connection for another request, now that the body is read."""
        transport = self._protocol.transport
        if transport is not None and transport.get_write_buffer_size():
            # An answer to half a request: the other half would be taken for the next one.
            self._connection.close()
        else:
            self._kept.add(self._protocol)
            self._connection.release()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class DirectRequest:
    """Posts bodies to one URL, in the event loop in which it was made.

    :param url: the URL.
    :param headers: HTTP headers of every request.
    :param proxy: the proxy between; ``None``: none.
    :param connector: makes and keeps the connections.
    :param timeout: bounds for connecting.
    """

    def __init__(
        self,
        url: URL,
        headers: Mapping[str, str],
        *,
        proxy: URL | None,
        connector: aiohttp.BaseConnector,
        timeout: aiohttp.ClientTimeout,
    ) -> None:
        self._connector = connector
        self._timeout = timeout
        loop = asyncio.get_running_loop()
        self._request = ClientRequest(hdrs.METH_POST, url, headers=headers, proxy=proxy, loop=loop)
        self._request.headers.popall(hdrs.CONTENT_LENGTH, None)  # of no body; each has its own
        self._head: bytes | None = None
        self._kept: WeakSet[ResponseHandler] = WeakSet()

    async def post(self, body: bytes) -> DirectResponse:
        """Post a body and return the answer once its head has come.

        :raises aiohttp.ClientError: when none came.
        :raises aiohttp.http_exceptions.HttpProcessingError: when what came is no sound HTTP.
        """
        connection = await self._connect()
        try:
            return await self._exchange(connection, body)
        except BaseException:
            connection.close()
            raise

    async def _connect(self) -> Connection:
        """Return a connection, new or kept, on which nothing stands between a request and its answer."""
        while True:
            try:
                connection = await self._connector.connect(self._request, traces=[], timeout=self._timeout)
            except TimeoutError as error:
                raise aiohttp.ConnectionTimeoutError from error
            protocol = connection.protocol
            if protocol is None or protocol not in self._kept:
                return connection
            self._kept.discard(protocol)
            if not _has_news(protocol):
                return connection
            connection.close()

    async def _exchange(self, connection: Connection, body: bytes) -> DirectResponse:
        protocol = connection.protocol
        transport = None if protocol is None else protocol.transport
        if protocol is None or transport is None or transport.is_closing():
            raise aiohttp.ClientConnectionResetError
        protocol.set_response_params(read_until_eof=True)
        if self._head is None:  # not before connecting, which may add a header that the proxy wants
            self._head = self._encoded_head()
        transport.write(b"%b%d\r\n\r\n%b" % (self._head, len(body), body))
        while True:
            message, content = await protocol.read()
            if message.code not in _ANNOUNCEMENTS:
                break
        return DirectResponse(
            message.code,
            message.headers,
            content,
            connection=connection,
            protocol=protocol,
            kept=self._kept,
        )

    def _encoded_head(self) -> bytes:
        """Return the request up to the value of ``Content-Length``, its last header."""
        request = self._request
        by_proxy = request.proxy is not None and not request.is_ssl()
        target = str(request.url) if by_proxy else request.url.raw_path_qs
        fields = [f"{name}: {value}" for name, value in request.headers.items()]
        lines = [f"{hdrs.METH_POST} {target} HTTP/1.1", *fields, f"{hdrs.CONTENT_LENGTH}: "]
        return "\r\n".join(lines).encode()


def _has_news(protocol: ResponseHandler) -> bool:
    """Tell whether the server has said something on a kept connection, although nobody asked.

    It may be the end of the connection, or another answer to the last request, which would be taken for the next one's.
    """
    if protocol.should_close:
        return True
    sock = None if protocol.transport is None else protocol.transport.get_extra_info("socket")
    if sock is None or not hasattr(select, "poll"):  # Windows has none
        return False
    # What the loop has not come to read yet.
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLIN)
    return bool(poll.poll(0))
