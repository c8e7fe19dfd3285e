from __future__ import annotations

import asyncio
import json
import ssl

import pytest

from airflow_llm_provider.clients import tls
from airflow_llm_provider.clients.openai import OpenAIClient
from airflow_llm_provider.clients.tls import ssl_context
from airflow_llm_provider.engine.call import CallError, FailureKind

COMPLETION = json.dumps({"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]})


async def answer(connection):
    while True:
        await connection.request()
        await connection.send(f"HTTP/1.1 200 OK\r\ncontent-length: {len(COMPLETION)}\r\n\r\n{COMPLETION}")


@pytest.mark.usefixtures("each_way")
class TestTrust:
    def test_a_certificate_that_nobody_signed_is_a_wrong_setting(self, ask_raw, certificate):
        error = ask_raw(answer, tls=certificate)
        assert (error.kind, error.code) == (FailureKind.CONFIGURATION, "tls_certificate")
        assert "of 127.0.0.1:" in str(error)

    def test_its_authority_in_ssl_cert_file_makes_it_trusted(self, ask_raw, certificate, monkeypatch):
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate.certificate))
        assert ask_raw(answer, tls=certificate).text == "hi"

    def test_it_holds_for_no_other_name(self, raw_server, certificate, monkeypatch):
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate.certificate))

        async def main():
            async with raw_server(answer, certificate) as server:
                client = OpenAIClient(base_url=f"https://localhost:{server.port}/v1")
                with pytest.raises(CallError) as caught:
                    await client.complete({"model": "m"}, timeout=20)
                await client.aclose()
                return caught.value

        error = asyncio.run(main())
        assert error.code == "tls_certificate"
        assert "is for another name" in str(error)

    def test_no_tls_on_the_other_side_is_a_failed_connection(self, raw_server):
        async def plain(connection):
            await connection.send("HTTP/1.1 400 Bad Request\r\n\r\n")

        async def main():
            async with raw_server(plain) as server:
                client = OpenAIClient(base_url=f"https://127.0.0.1:{server.port}/v1")
                with pytest.raises(CallError) as caught:
                    await client.complete({"model": "m"}, timeout=20)
                await client.aclose()
                return caught.value

        error = asyncio.run(main())
        assert (error.kind, error.code) == (FailureKind.CONNECTION, "connect_failed")

    def test_authorities_that_cannot_be_read_are_a_wrong_setting(self, ask_raw, certificate, monkeypatch):
        monkeypatch.setenv("SSL_CERT_FILE", "/nowhere/ca.pem")
        error = ask_raw(answer, tls=certificate)
        assert (error.kind, error.code) == (FailureKind.CONFIGURATION, "tls_authorities")


@pytest.fixture
def trusted_with(monkeypatch):
    """Return the authorities that are loaded where OpenSSL looks into a folder."""

    def trusted(folder):
        for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
            monkeypatch.delenv(name, raising=False)
        places = ssl.get_default_verify_paths()._replace(cafile=None, capath=folder)
        monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: places)
        # What lies in the real folder is no matter here.
        monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda *_: None)
        tls._context.cache_clear()
        return tls.ssl_context().get_ca_certs()

    yield trusted
    tls._context.cache_clear()


class TestAuthoritiesOfTheMachine:
    @pytest.mark.parametrize("files", [None, [], ["ca-bundle.crt", "README"]])
    def test_are_mozillas_where_openssl_would_find_none(self, files, trusted_with, tmp_path):
        for name in files or []:
            (tmp_path / name).touch()
        assert len(trusted_with(None if files is None else str(tmp_path))) > 50

    def test_are_its_own_where_they_lie_by_their_hash(self, trusted_with, tmp_path):
        (tmp_path / "4042bcee.0").touch()
        assert trusted_with(str(tmp_path)) == []


class TestReading:
    def test_is_done_once(self):
        assert ssl_context() is ssl_context()
        assert ssl_context().verify_mode is ssl.CERT_REQUIRED
        assert ssl_context().check_hostname

    def test_is_done_anew_for_other_authorities(self, certificate, monkeypatch):
        before = ssl_context()
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate.certificate))
        assert ssl_context() is not before

    def test_is_not_done_for_plain_http_nor_by_making_a_client(self, scripted_server, monkeypatch):
        monkeypatch.setenv("SSL_CERT_FILE", "/nowhere/ca.pem")

        async def main():
            OpenAIClient(base_url="https://127.0.0.1:9/v1")
            client = OpenAIClient(base_url=scripted_server.base_url)
            await client.complete({"model": "m"}, timeout=20)
            await client.aclose()

        asyncio.run(main())
