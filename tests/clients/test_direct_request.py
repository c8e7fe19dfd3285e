from __future__ import annotations

import asyncio
import re
import socket
from pathlib import Path

import aiohttp
import pytest
import uvloop
from yarl import URL

from airflow_llm_provider.clients.direct_request import DirectRequest, can_be_direct
from airflow_llm_provider.clients.openai import OpenAIClient

ROOT = Path(__file__).parents[2]
COMPLETION = b'{"choices": [{"message": {"content": "hi"}}]}'
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(COMPLETION), COMPLETION)


def answer(text):
    """Return an answer of that text."""
    return ANSWER.replace(b"hi", text.encode()).replace(
        b"length: %d" % len(COMPLETION), b"length: %d" % (len(COMPLETION) - 2 + len(text))
    )


class TestKnownVersions:
    def test_every_pinned_aiohttp_is_one(self, monkeypatch):
        assert can_be_direct()
        pins = [
            re.search(r"^aiohttp==(\S+)$", (ROOT / name).read_text(), re.MULTILINE)[1]
            for name in ("constraints.txt", "constraints-oldest.txt")
        ]
        for version in (*pins, "3.13.0"):
            monkeypatch.setattr(aiohttp, "__version__", version)
            assert can_be_direct(), version

    @pytest.mark.parametrize("version", ["3.12.15", "3.15.0", "4.0.0", "3.1.3"])
    def test_others_are_none(self, version, monkeypatch):
        monkeypatch.setattr(aiohttp, "__version__", version)
        assert not can_be_direct()


class TestWhatIsSent:
    @pytest.mark.parametrize(
        "path", ["v1", "openai/deployments/gpt%204?api-version=2024-10-21&x=a%26b", "modèle/v1"]
    )
    def test_is_byte_by_byte_what_a_session_sends(self, raw_server, path, monkeypatch):
        async def main():
            seen = []

            async def handle(connection):
                head = await connection.reader.readuntil(b"\r\n\r\n")
                seen.append(head + await connection.reader.readexactly(len(b'{"model":"m"}')))
                await connection.send(ANSWER)

            async with raw_server(handle) as server:
                for version in ("3.14.0", "3.999.0"):
                    monkeypatch.setattr(aiohttp, "__version__", version)
                    client = OpenAIClient(
                        base_url=server.base_url.replace("v1", path), api_key="k", headers={"X-Team": "a b"}
                    )
                    await client.complete({"model": "m"}, timeout=20)
                    await client.aclose()
            return seen

        direct, session = asyncio.run(main())
        assert sorted(direct.split(b"\r\n")) == sorted(session.split(b"\r\n"))
        assert direct.split(b"\r\n")[0] == session.split(b"\r\n")[0]
        assert direct.endswith(b'\r\n\r\n{"model":"m"}')


class TestDirectRequest:
    def test_a_connection_that_went_away_before_the_request_is_an_error_and_given_back(self, raw_server):
        """Nothing was sent, and nobody waits for an answer to it."""

        class Closing(aiohttp.TCPConnector):
            async def connect(self, *args, **options):
                connection = await super().connect(*args, **options)
                connection.protocol.transport.abort()
                return connection

        async def main():
            async with raw_server(lambda connection: connection.gone()) as server:
                connector = Closing(limit=1)
                request = DirectRequest(
                    URL(server.base_url),
                    {},
                    proxy=None,
                    connector=connector,
                    timeout=aiohttp.ClientTimeout(total=None),
                )
                for _ in range(2):
                    with pytest.raises(aiohttp.ClientConnectionResetError):
                        await request.post(b"{}")
                await connector.close()

        asyncio.run(main())


class TestKeptConnections:
    """Each of the two requests has an answer of its own, whatever came in between without being asked for."""

    @pytest.mark.parametrize("is_read", [True, False], ids=["read", "not read yet"])
    @pytest.mark.parametrize(
        "spoil",
        [
            lambda peer: peer.send(answer("first")),
            lambda peer: peer.send(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n"),
            lambda peer: peer.shutdown(socket.SHUT_WR),
        ],
        ids=["a second answer", "a word of an idle server", "the end"],
    )
    @pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
    def test_one_on_which_the_server_has_said_something_unasked_is_not_used(
        self, raw_server, spoil, is_read, loop_factory
    ):
        async def main():
            connections = []

            async def handle(connection):
                connections.append(connection)
                await connection.request()
                await connection.send(answer("first" if len(connections) == 1 else "second"))
                await connection.gone()

            async with raw_server(handle) as server:
                client = OpenAIClient(base_url=server.base_url, concurrency=1)
                found = [(await client.complete({"model": "m"}, timeout=20)).text]
                # At once, whatever loops put off.
                number = connections[0].writer.transport.get_extra_info("socket").fileno()
                with socket.fromfd(number, socket.AF_INET, socket.SOCK_STREAM) as peer:
                    spoil(peer)
                if is_read:
                    for _ in range(5):
                        await asyncio.sleep(0)
                found.append((await client.complete({"model": "m"}, timeout=20)).text)
                await client.aclose()
                return found

        with asyncio.Runner(loop_factory=loop_factory) as runner:
            assert runner.run(main()) == ["first", "second"]
