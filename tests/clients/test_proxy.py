from __future__ import annotations

import asyncio
import base64
import contextlib
import json

import pytest
from yarl import URL

from airflow_llm_provider.clients.openai import OpenAIClient
from airflow_llm_provider.clients.proxy import proxy_for
from airflow_llm_provider.engine.call import CallError, FailureKind
from airflow_llm_provider.errors import LLMInputError

COMPLETION = json.dumps({"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]})
ANSWER = f"HTTP/1.1 200 OK\r\ncontent-length: {len(COMPLETION)}\r\n\r\n{COMPLETION}"
LOGIN = "Basic " + base64.b64encode(b"user:p@w").decode()


@pytest.fixture
def set_proxy(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return monkeypatch.setenv


class TestChoice:
    def found(self, url, **environment):
        proxy = proxy_for(URL(url), environment)
        return None if proxy is None else str(proxy)

    def test_each_kind_of_url_has_its_own_and_all_is_for_the_rest(self):
        environment = {"http": "http://a:1", "all": "http://b:2"}
        assert self.found("http://host/v1", **environment) == "http://a:1"
        assert self.found("https://host/v1", **environment) == "http://b:2"
        assert self.found("https://host/v1", http="http://a:1") is None

    def test_a_proxy_without_a_scheme_is_http(self):
        assert self.found("https://host/v1", https="proxy.example:3128") == "http://proxy.example:3128"

    @pytest.mark.parametrize("proxy", ["socks5://user:pw@proxy:1080", "http://", "http://host:port"])
    def test_a_proxy_that_cannot_be_used_is_refused_without_showing_it(self, proxy):
        with pytest.raises(LLMInputError, match="mend HTTPS_PROXY or ALL_PROXY") as caught:
            self.found("https://host/v1", all=proxy)
        assert proxy not in str(caught.value)
        assert "pw" not in str(caught.value)

    @pytest.mark.parametrize(
        ("entries", "url"),
        [
            ("*", "https://api.example.com/v1"),
            ("example.com", "https://example.com/v1"),
            ("example.com", "https://api.example.com/v1"),
            ("a, EXAMPLE.com ,b", "https://api.Example.com/v1"),
            (".example.com", "https://api.example.com/v1"),
            ("*.example.com", "https://api.example.com/v1"),
            ("https://example.com", "https://example.com/v1"),
            ("all://example.com", "https://example.com/v1"),
            ("example.com:8443", "https://example.com:8443/v1"),
            ("example.com:443", "https://example.com/v1"),
            ("localhost", "http://localhost:8000/v1"),
            ("127.0.0.1", "http://127.0.0.1:8000/v1"),
            ("127.0.0.1:8000", "http://127.0.0.1:8000/v1"),
            ("10.0.0.0/8", "http://10.1.2.3/v1"),
            ("::1", "http://[::1]:8000/v1"),
            ("[::1]", "http://[::1]:8000/v1"),
            ("[::1]:8000", "http://[::1]:8000/v1"),
            ("fd00::/8", "http://[fd12::1]/v1"),
        ],
    )
    def test_exceptions_are_reached_directly(self, entries, url):
        assert self.found(url, http="http://p:1", https="http://p:1", no=entries) is None

    @pytest.mark.parametrize(
        ("entries", "url"),
        [
            ("", "https://example.com/v1"),
            (",", "https://example.com/v1"),
            ("example.com", "https://notexample.com/v1"),
            ("example.com", "https://example.com.org/v1"),
            (".example.com", "https://example.com/v1"),
            ("http://example.com", "https://example.com/v1"),
            ("https://example.com", "https://api.example.com/v1"),
            ("example.com:8443", "https://example.com/v1"),
            ("localhost", "http://my.localhost/v1"),
            ("10.0.0.0/8", "http://11.1.2.3/v1"),
            ("10.0.0.0/8", "http://ten.example/v1"),
            ("10.0.0.0/8", "http://[::1]/v1"),
            ("10.0.0.0/99", "http://10.0.0.1/v1"),
        ],
    )
    def test_others_are_not(self, entries, url):
        assert self.found(url, http="http://p:1", https="http://p:1", no=entries) == "http://p:1"


@pytest.mark.usefixtures("each_way")
class TestUse:
    def ask(self, raw_server, handle, set_proxy, base_url):
        async def main():
            async with raw_server(handle) as proxy:
                name = f"{URL(base_url).scheme}_proxy"
                set_proxy(name, f"http://user:p%40w@127.0.0.1:{proxy.port}")
                client = OpenAIClient(base_url=base_url, api_key="k")
                try:
                    return [(await client.complete({"model": "m"}, timeout=20)).text for _ in range(2)]
                except CallError as error:
                    return error
                finally:
                    await client.aclose()

        return asyncio.run(main())

    def test_plain_requests_go_to_the_proxy_with_its_login_and_ours(self, raw_server, set_proxy):
        seen = []

        async def handle(connection):
            while True:
                seen.append(await connection.request())
                await connection.send(ANSWER)

        assert self.ask(raw_server, handle, set_proxy, "http://model.invalid/v1") == ["hi", "hi"]
        first, headers = seen[1]
        assert first == "POST http://model.invalid/v1/chat/completions HTTP/1.1"
        assert headers["host"] == "model.invalid"
        assert headers["proxy-authorization"] == LOGIN
        assert headers["authorization"] == "Bearer k"

    @pytest.fixture
    def trusted(self, certificate, monkeypatch):
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate.certificate))
        return certificate

    @pytest.mark.parametrize("login", ["user:p%40w@", ""])
    def test_tls_goes_through_a_tunnel_and_the_proxy_sees_no_key(self, raw_server, set_proxy, trusted, login):
        tunnels = []

        async def answer(connection):
            while True:
                await connection.request()
                await connection.send(ANSWER)

        async def tunnel(connection):
            tunnels.append(await connection.request())
            host, port = tunnels[-1][0].split(" ")[1].split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            await connection.send("HTTP/1.1 200 OK\r\n\r\n")

            async def copy(source, target):
                with contextlib.suppress(ConnectionError), contextlib.closing(target):
                    while data := await source.read(65536):
                        target.write(data)

            await asyncio.gather(copy(connection.reader, writer), copy(reader, connection.writer))

        async def main():
            async with raw_server(answer, trusted) as server, raw_server(tunnel) as proxy:
                set_proxy("HTTPS_PROXY", f"http://{login}127.0.0.1:{proxy.port}")
                client = OpenAIClient(base_url=server.base_url, api_key="k")
                texts = [(await client.complete({"model": "m"}, timeout=20)).text for _ in range(2)]
                await client.aclose()
                return texts, server.port

        texts, port = asyncio.run(main())
        assert texts == ["hi", "hi"]
        (first, headers), *more = tunnels
        assert first == f"CONNECT 127.0.0.1:{port} HTTP/1.1"
        assert headers.get("proxy-authorization") == (LOGIN if login else None)
        assert "authorization" not in headers
        assert not more

    @pytest.mark.parametrize(
        ("status", "kind", "code"),
        [
            (407, FailureKind.AUTHENTICATION, "proxy_login"),
            (403, FailureKind.CONNECTION, "proxy_refused"),
            (502, FailureKind.CONNECTION, "proxy_refused"),
        ],
    )
    def test_a_tunnel_refused_says_so(self, raw_server, set_proxy, status, kind, code):
        async def handle(connection):
            await connection.request()
            await connection.send(f"HTTP/1.1 {status} No\r\ncontent-length: 0\r\n\r\n")

        error = self.ask(raw_server, handle, set_proxy, "https://model.invalid/v1")
        assert (error.kind, error.code) == (kind, code)
        assert f"HTTP {status}" in str(error)

    def test_a_login_that_a_plain_proxy_wants_is_a_terminal_failure(self, raw_server, set_proxy):
        async def handle(connection):
            await connection.request()
            await connection.send("HTTP/1.1 407 No\r\ncontent-length: 0\r\n\r\n")

        error = self.ask(raw_server, handle, set_proxy, "http://model.invalid/v1")
        assert (error.kind, error.code) == (FailureKind.AUTHENTICATION, "http_407")

    def test_a_proxy_that_is_not_there_is_named_without_its_login(self, set_proxy, free_port):
        set_proxy("HTTPS_PROXY", f"http://user:pw@127.0.0.1:{free_port}")

        async def main():
            client = OpenAIClient(base_url="https://model.invalid/v1")
            with pytest.raises(CallError) as caught:
                await client.complete({"model": "m"}, timeout=20)
            await client.aclose()
            return caught.value

        error = asyncio.run(main())
        assert (error.kind, error.code) == (FailureKind.CONNECTION, "connect_failed")
        assert f"cannot connect to the proxy 127.0.0.1:{free_port}" in str(error)
        assert "pw" not in str(error)
