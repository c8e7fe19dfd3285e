"""Just enough HTTP/1.1, and all the ways it can go wrong on purpose.

Written by hand because the server must cost its machine less than the client that is measured against it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from http import HTTPStatus

_END_OF_HEAD = b"\r\n\r\n"
_REASONS = {status.value: status.phrase for status in HTTPStatus}


class Fault(StrEnum):
    """How a response goes wrong on its way."""

    #: Never sent; the connection stays open.
    HANG = "hang"
    #: The connection is closed in place of a response.
    DROP = "drop"
    #: Half of the body is sent, then the connection is closed.
    HALF = "half"


@dataclass(kw_only=True, slots=True)
class HttpRequest:
    """One request. Header names are in lower case."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(kw_only=True, slots=True)
class HttpResponse:
    """One response.

    :param delay: seconds before it is sent.
    :param fault: how it goes wrong.
    :param hold: takes what sends it, to call it when the time has come; with it ``delay`` does not count.
    :param on_end: called with whether it was sent whole, once that is known.
    """

    status: int = 200
    body: bytes = b"{}"
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "application/json"
    delay: float = 0.0
    fault: Fault | None = None
    hold: Callable[[Callable[[], None]], None] | None = None
    on_end: Callable[[bool], None] | None = None

    def encode(self) -> bytes:
        """Return head and body as bytes."""
        extra = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        head = (
            f"HTTP/1.1 {self.status} {_REASONS.get(self.status, 'Unknown')}\r\n"
            f"content-type: {self.content_type}\r\ncontent-length: {len(self.body)}\r\n{extra}\r\n"
        )
        return head.encode("latin-1", "replace") + self.body


Application = Callable[[HttpRequest], HttpResponse]


class HttpConnection(asyncio.Protocol):
    """One client connection; requests on it are answered one after the other.

    :param application: turns a request into a response.
    """

    def __init__(self, application: Application) -> None:
        self._application = application
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._pending: HttpResponse | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = transport  # type: ignore[assignment]  # TCP transports are asyncio.Transport or alike

    def connection_lost(self, _: Exception | None) -> None:
        """Forget what was to be sent: the client has gone."""
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        self._end(whole=False)

    def data_received(self, data: bytes) -> None:
        """Collect bytes and answer as soon as a request is whole."""
        self._buffer += data
        if not self._buffer[:1].isalpha():  # no HTTP, such as a TLS greeting
            self.abort()
            return
        if self._pending is None:
            self._serve()

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def _serve(self) -> None:
        request = self._next_request()
        if request is None:
            return
        response = self._application(request)
        self._pending = response
        if response.fault is Fault.HANG:
            return
        if response.hold is not None:
            response.hold(lambda: self._send() if self._pending is response else None)
        elif response.delay > 0:
            self._timer = asyncio.get_running_loop().call_later(response.delay, self._send)
        else:
            self._send()

    def _next_request(self) -> HttpRequest | None:
        """Cut the first whole request off the buffer."""
        end = self._buffer.find(_END_OF_HEAD)
        if end < 0:
            return None
        lines = self._buffer[:end].decode("latin-1").split("\r\n")
        method, target, _ = lines[0].split(" ", 2)
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        start = end + len(_END_OF_HEAD)
        stop = start + int(headers.get("content-length", 0))
        if len(self._buffer) < stop:
            return None
        body = bytes(self._buffer[start:stop])
        del self._buffer[:stop]
        path, _, query = target.partition("?")
        return HttpRequest(method=method, path=path, query=query, headers=headers, body=body)

    def _send(self) -> None:
        response, transport = self._pending, self._transport
        if response is None or transport is None:
            return
        self._timer = None
        if response.fault is Fault.DROP:
            transport.abort()
            return
        data = response.encode()
        if response.fault is Fault.HALF:
            transport.write(data[: len(data) - (len(response.body) + 1) // 2])
            transport.close()
            return
        transport.write(data)
        self._end(whole=True)
        if self._buffer:
            self._serve()

    def _end(self, *, whole: bool) -> None:
        response, self._pending = self._pending, None
        if response is not None and response.on_end is not None:
            response.on_end(whole)
