from __future__ import annotations

import asyncio
import gzip
import json
import zlib

import pytest
from yarl import URL

from airflow_llm_provider.clients.connections import Connections
from airflow_llm_provider.clients.openai import OpenAIClient
from airflow_llm_provider.engine.call import CallError, FailureKind
from tests.still_loop import arrives, run_still, time_passes

pytestmark = pytest.mark.usefixtures("each_way")

COMPLETION = json.dumps({"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]}).encode()
BODY = {"model": "m"}


def answer(body=COMPLETION, *headers):
    lines = ["HTTP/1.1 200 OK", "content-type: application/json", f"content-length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def answering(*answers):
    """Handle a connection: one answer to each request, the last one over and over."""

    async def handle(connection):
        pending = list(answers)
        while True:
            await connection.request()
            await connection.send(pending.pop(0) if len(pending) > 1 else pending[0])

    return handle


class TestTime:
    @pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n"])
    def test_C13_a_server_that_trickles_is_given_up_when_the_whole_call_has_had_its_time(self, ask_raw, head):
        async def trickle(connection):
            await connection.request()
            await connection.send(head or b"HTTP/1.1 200 OK\r\nx-")
            while not connection.writer.is_closing():
                await connection.send(b"a")
                await time_passes(0.5)

        error = ask_raw(trickle, timeout=20)
        assert (error.kind, error.code) == (FailureKind.TIMEOUT, "timeout")

    def test_C13_a_server_that_never_greets_is_given_up_as_well(self, raw_server):
        async def silent(connection):
            await time_passes(20)
            await connection.gone()

        async def main():
            async with raw_server(silent) as server:
                client = OpenAIClient(base_url=f"https://127.0.0.1:{server.port}/v1")
                with pytest.raises(CallError) as caught:
                    await client.complete(BODY, timeout=20)
                await client.aclose()
                return caught.value

        assert run_still(main()).kind is FailureKind.TIMEOUT

    def test_C13_the_time_is_for_both_tries_of_the_caps_name(self, ask_raw):
        refusal = json.dumps({"error": {"code": "unsupported_parameter", "param": "max_tokens"}}).encode()

        async def handle(connection):
            for late in (answer(refusal).replace(b"200 OK", b"400 Bad Request"), answer()):
                await connection.request()
                await time_passes(15)
                await connection.send(late)

        error = ask_raw(handle, body={**BODY, "max_tokens": 1}, timeout=20)
        assert error.kind is FailureKind.TIMEOUT


class TestCancelling:
    @pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{"])
    def test_closes_the_connection_so_that_the_endpoint_knows(self, raw_server, sent):
        async def main():
            asked, closed = asyncio.Event(), asyncio.Event()

            async def handle(connection):
                await connection.request()
                await connection.send(sent)
                asked.set()
                await connection.gone()
                closed.set()

            async with raw_server(handle) as server:
                client = OpenAIClient(base_url=server.base_url)
                task = asyncio.create_task(client.complete(BODY, timeout=20))
                await asked.wait()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                await closed.wait()
                await client.aclose()

        asyncio.run(main())

    def test_C13_a_call_out_of_time_closes_it_too(self, raw_server):
        async def main():
            closed = asyncio.Event()

            async def handle(connection):
                await time_passes(20)
                await connection.gone()
                closed.set()

            async with raw_server(handle) as server:
                client = OpenAIClient(base_url=server.base_url)
                with pytest.raises(CallError):
                    await client.complete(BODY, timeout=20)
                await closed.wait()
                await client.aclose()

        run_still(main())


class TestKeeping:
    def test_one_connection_serves_request_after_request(self, raw_server):
        async def main():
            async with raw_server(answering(answer())) as server:
                client = OpenAIClient(base_url=server.base_url)
                for _ in range(3):
                    await client.complete(BODY, timeout=20)
                await client.aclose()
                return server.connections

        assert asyncio.run(main()) == 1

    def test_no_more_connections_than_allowed(self, raw_server):
        async def main():
            async with raw_server(answering(answer())) as server:
                client = OpenAIClient(base_url=server.base_url, concurrency=2)
                await asyncio.gather(*(client.complete(BODY, timeout=20) for _ in range(8)))
                await client.aclose()
                return server.connections

        assert asyncio.run(main()) == 2

    @pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
    def test_an_answer_to_half_a_request_leaves_its_connection_to_nobody(self, raw_server):
        """Large prompts are refused before they are read; the rest of one is no beginning of the next request."""

        async def main():
            async def hasty(connection):
                await connection.reader.readuntil(b"\r\n\r\n")
                await connection.send(answer())
                await connection.gone()

            async with raw_server(hasty) as server:
                client = OpenAIClient(base_url=server.base_url, concurrency=1)
                large = {**BODY, "messages": [{"role": "user", "content": "x" * 30_000_000}]}
                texts = [(await client.complete(large, timeout=20)).text for _ in range(2)]
                await client.aclose()
                return texts, server.connections

        assert asyncio.run(main()) == (["hi", "hi"], 2)

    def test_cookies_are_not_kept(self, ask_raw):
        seen = []

        async def handle(connection):
            while True:
                seen.append((await connection.request())[1])
                await connection.send(answer(COMPLETION, "set-cookie: session=1; path=/"))

        ask_raw(handle, asked=2)
        assert [request.get("cookie") for request in seen] == [None, None]

    def test_a_closed_client_says_so(self):
        async def main():
            client = OpenAIClient(base_url="http://127.0.0.1:9/v1")
            await client.aclose()
            await client.aclose()
            with pytest.raises(RuntimeError, match="the client is closed"):
                await client.complete(BODY, timeout=20)

        asyncio.run(main())

    def test_a_client_serves_one_event_loop(self, scripted_server):
        client = OpenAIClient(base_url=scripted_server.base_url)
        with asyncio.Runner() as first:
            first.run(client.complete(BODY, timeout=20))
            with asyncio.Runner() as second, pytest.raises(RuntimeError, match="another event loop"):
                second.run(client.complete(BODY, timeout=20))
            first.run(client.aclose())


class TestBodies:
    @pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
    def test_a_body_larger_than_what_a_socket_takes_arrives_whole(self, raw_server):
        async def main():
            lengths = []

            async def handle(connection):
                while True:
                    _, headers = await connection.request()
                    lengths.append(int(headers["content-length"]))
                    await connection.send(answer())

            async with raw_server(handle) as server:
                client = OpenAIClient(base_url=server.base_url)
                for content in ("x" * 10_000_000, "é"):
                    body = {"messages": [{"role": "user", "content": content}]}
                    await client.complete(body, timeout=20)
                await client.aclose()
                return lengths, server.connections

        assert asyncio.run(main()) == ([10_000_043, 45], 1)


class TestAnnouncements:
    @pytest.mark.parametrize("status", ["099 No", "000 No", "101 Switching Protocols"])
    def test_nothing_else_is_waited_after(self, ask_raw, status):
        async def handle(connection):
            await connection.request()
            await connection.send(f"HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n")
            await arrives()
            await time_passes(20)

        assert ask_raw(handle, timeout=20).status_code == int(status[:3])

    @pytest.mark.parametrize("status", ["100 Continue", "102 Processing", "103 Early Hints"])
    def test_what_comes_before_the_answer_is_not_the_answer(self, ask_raw, status):
        early = f"HTTP/1.1 {status}\r\n\r\n".encode()
        replies = ask_raw(answering(early + early + answer()), asked=2)
        assert [reply.text for reply in replies] == ["hi", "hi"]


class TestEncodings:
    @pytest.mark.parametrize(
        ("encoding", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress), ("identity", bytes)]
    )
    def test_compressed_answers_are_read(self, ask_raw, encoding, compress):
        reply = ask_raw(answering(answer(compress(COMPLETION), f"content-encoding: {encoding}")))
        assert reply.text == "hi"

    def test_chunked_answers_are_read(self, ask_raw):
        chunks = "".join(f"{1:x}\r\n{chr(byte)}\r\n" for byte in COMPLETION)
        head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
        assert ask_raw(answering(f"{head}{chunks}0\r\n\r\n")).text == "hi"

    def test_answers_that_end_with_the_connection_are_read(self, ask_raw):
        async def handle(connection):
            await connection.request()
            await connection.send(b"HTTP/1.0 200 OK\r\n\r\n" + COMPLETION)

        assert ask_raw(handle).text == "hi"

    @pytest.mark.parametrize(
        "raw",
        [
            answer(COMPLETION, "content-encoding: gzip"),
            answer(COMPLETION, "content-encoding: br"),
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
            b"SSH-2.0-OpenSSH_9.9\r\n",
            b"HTTP/1.1 200 OK\r\nx: " + b"a" * 100_000 + b"\r\n\r\n",
        ],
    )
    def test_C14_what_is_no_sound_http_is_a_bad_response(self, ask_raw, raw):
        error = ask_raw(answering(raw))
        assert (error.kind, error.code) == (FailureKind.BAD_RESPONSE, "bad_http")

    def test_headers_that_are_no_text_harm_nobody(self, ask_raw):
        reply = ask_raw(
            answering(answer(COMPLETION, "X-Request-ID: r\xff\xfe", "X-RateLimit-Limit-Requests: \xff"))
        )
        assert reply.request_id.encode()
        assert reply.rate.limit_requests is None

    def test_header_names_are_known_in_any_case(self, ask_raw):
        reply = ask_raw(answering(answer(COMPLETION, "X-Request-ID: r1", "X-RateLimit-Limit-Requests: 7")))
        assert (reply.request_id, reply.rate.limit_requests) == ("r1", 7)


class TestSize:
    def post(self, raw_server, raw, most_bytes):
        async def main():
            async with raw_server(answering(raw)) as server:
                connections = Connections(URL(server.base_url), {}, limit=1, most_bytes=most_bytes)
                try:
                    return await connections.post(b"{}")
                finally:
                    await connections.aclose()

        return asyncio.run(main())

    def test_an_answer_of_the_greatest_length_is_read(self, raw_server):
        assert self.post(raw_server, answer(bytes(100_000)), 100_000).body == bytes(100_000)

    @pytest.mark.parametrize(
        "raw",
        [
            answer(bytes(100_001)),
            answer(gzip.compress(bytes(5_000_000)), "content-encoding: gzip"),
            b"HTTP/1.1 200 OK\r\n\r\n" + bytes(200_000),
        ],
    )
    def test_a_longer_one_is_given_up(self, raw_server, raw):
        with pytest.raises(CallError) as caught:
            self.post(raw_server, raw, 100_000)
        error = caught.value
        assert (error.kind, error.code, error.status_code) == (
            FailureKind.BAD_RESPONSE,
            "answer_too_large",
            200,
        )
        assert str(error) == "HTTP 200 with an answer of more than 100,000 bytes"
