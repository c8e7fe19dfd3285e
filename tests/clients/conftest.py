"""Servers of a few lines, for what a server with manners never does."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import subprocess
from typing import TYPE_CHECKING, NamedTuple, Self

import aiohttp
import pytest

from airflow_llm_provider.clients.openai import OpenAIClient
from airflow_llm_provider.engine.call import CallError
from tests.still_loop import run_still

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path


class Connection:
    """One connection, as the server sees it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def request(self) -> tuple[str, dict[str, str]]:
        """Read a request: its first line, and its headers by name in lower case."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        await self.reader.readexactly(int(headers.get("content-length", 0)))
        return first, headers

    async def send(self, text: str | bytes) -> None:
        """Send, whether or not somebody is there to hear it."""
        self.writer.write(text if isinstance(text, bytes) else text.encode("latin-1"))
        with contextlib.suppress(ConnectionError):
            await self.writer.drain()

    async def gone(self) -> None:
        """Wait until the client closes the connection."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65536):
                pass


class RawServer:
    """A server on the loop of its client that does to each connection what ``handle`` says.

    :param tls: files of key and certificate.
    """

    def __init__(
        self, handle: Callable[[Connection], Awaitable[None]], tls: Certificate | None = None
    ) -> None:
        self._handle = handle
        self._tls = tls
        self._tasks: set[asyncio.Task[None] | None] = set()
        self.connections = 0

    async def __aenter__(self) -> Self:
        context = None
        if self._tls is not None:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(self._tls.certificate, self._tls.key)
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=context)
        self.port = self._server.sockets[0].getsockname()[1]
        self.base_url = f"http{'s' if context else ''}://127.0.0.1:{self.port}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        self._tasks.add(task)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            await self._handle(Connection(reader, writer))
        self._tasks.discard(task)
        writer.transport.abort()


@pytest.fixture(params=["direct", "session"])
def each_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test both on connections of an aiohttp that is known well and on those of one that is not."""
    if request.param == "session":
        monkeypatch.setattr(aiohttp, "__version__", "3.999.0")


class Certificate(NamedTuple):
    key: Path
    certificate: Path


@pytest.fixture
def raw_server() -> type[RawServer]:
    return RawServer


@pytest.fixture
def ask_raw():
    """Let a client ask a server that handles connections so; failures stand in for replies.

    Time passes when the server lets it, and not before.
    """

    def ask(
        handle, *, body=None, asked: int = 1, timeout: float = 20.0, tls: Certificate | None = None, **options
    ):
        async def main():
            async with RawServer(handle, tls) as server:
                client = OpenAIClient(**{"base_url": server.base_url, "api_key": "k", **options})
                found = []
                for _ in range(asked):
                    try:
                        found.append(await client.complete(body or {"model": "m"}, timeout=timeout))
                    except CallError as error:
                        found.append(error)
                await client.aclose()
                return found if asked > 1 else found[0]

        return run_still(main())

    return ask


@pytest.fixture
def free_port() -> Iterator[int]:
    """A port at which nobody listens, nor can begin to meanwhile."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """A certificate of 127.0.0.1 that nobody but itself signed."""
    folder = tmp_path_factory.mktemp("tls")
    found = Certificate(folder / "key.pem", folder / "cert.pem")
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=scripted",
    ]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", found.key, "-out", found.certificate]
    subprocess.run(command, check=True, capture_output=True)
    return found
