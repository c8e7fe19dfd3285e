from __future__ import annotations

import asyncio
import ssl
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

import pytest
from yarl import URL

from airflow_llm_provider.clients import openai
from airflow_llm_provider.clients.openai import OpenAIClient
from airflow_llm_provider.engine.call import CallError, FailureKind
from airflow_llm_provider.errors import LLMInputError
from airflow_llm_provider.testing.scripted_server import AccountLimits, EndpointOptions, Rule, ScriptedServer
from tests.still_loop import run_still, time_passes

KEY = "my-own-s3cret"


def body(text="hi", **more):
    return {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 5, **more}


async def there(server, *, in_flight):
    """Wait until the server has so many requests that it has not answered."""
    while (await asyncio.to_thread(server.stats))["in_flight"] < in_flight:
        pass


def ask(server, *bodies, **options):
    """Send bodies one after the other through one client; a failure stands in for its reply."""
    base_url = server if isinstance(server, str) else server.base_url

    async def main():
        client = OpenAIClient(**{"base_url": base_url, "api_key": KEY, **options})
        found = []
        for each in bodies or (body(),):
            try:
                found.append(await client.complete(each, timeout=20))
            except CallError as error:
                found.append(error)
        await client.aclose()
        return found

    found = asyncio.run(main())
    return found if len(bodies) > 1 else found[0]


class TestRequests:
    def test_the_body_goes_out_as_it_is_and_the_reply_comes_back(self, scripted_server):
        reply = ask(scripted_server, body("größe 😀", temperature=0.5))
        assert (reply.text, reply.finish_reason, reply.model, reply.request_id) == (
            "echo: größe 😀",
            "stop",
            "m",
            "req_0",
        )
        assert reply.usage.prompt_tokens == 2
        assert scripted_server.requests[0].body == body("größe 😀", temperature=0.5)

    def test_key_organisation_project_and_further_headers_go_along(self, scripted_server):
        ask(
            scripted_server,
            organization="org-1",
            project="proj-1",
            headers={"X-Team": "a", "User-Agent": "mine"},
        )
        request = scripted_server.requests[0]
        assert request.authorized
        assert request.headers["openai-organization"] == "org-1"
        assert request.headers["openai-project"] == "proj-1"
        assert request.headers["x-team"] == "a"
        assert request.headers["user-agent"] == "mine"

    def test_it_says_who_it_is(self, scripted_server):
        ask(scripted_server)
        agent = scripted_server.requests[0].headers["user-agent"]
        assert agent == f"airflow-llm-provider/{version('airflow-llm-provider')}"

    def test_a_copy_without_metadata_works_too(self, scripted_server, monkeypatch):
        def find(name):
            raise PackageNotFoundError(name)

        monkeypatch.setattr(openai, "version", find)
        # Neither what was found out before nor for those after.
        monkeypatch.setattr(openai, "_user_agent", openai._user_agent.__wrapped__)
        ask(scripted_server)
        assert scripted_server.requests[0].headers["user-agent"] == "airflow-llm-provider"

    @pytest.mark.parametrize("key", [None, "", "  "])
    def test_a_blank_key_sends_none(self, scripted_server, key):
        assert ask(scripted_server, api_key=key).text == "echo: hi"
        assert not scripted_server.requests[0].authorized

    def test_the_environment_of_the_sdk_has_no_say(self, scripted_server, monkeypatch):
        for name, value in {
            "API_KEY": "k",
            "ORG_ID": "o",
            "PROJECT_ID": "p",
            "BASE_URL": "http://127.0.0.1:9",
        }.items():
            monkeypatch.setenv(f"OPENAI_{name}", value)
        ask(scripted_server, api_key=None)
        request = scripted_server.requests[0]
        assert not request.authorized
        assert not {"openai-organization", "openai-project"} & request.headers.keys()

    def test_an_own_authorization_header_wins(self, scripted_server):
        scripted_server.script(Rule(key="Basic abc", answer="basic"))
        assert ask(scripted_server, api_key=None, headers={"authorization": "Basic abc"}).text == "basic"
        assert ask(scripted_server, headers={"authorization": "Basic abc"}).text == "basic"

    def test_integers_beyond_64_bits_go_out(self, scripted_server):
        ask(scripted_server, body(seed=2**80))
        assert scripted_server.stats()["by_status"] == {"200": 1}

    def test_a_login_in_the_base_url_is_sent_unless_there_is_a_key(self, scripted_server):
        url = scripted_server.base_url.replace("://", "://user:p%40w@")
        scripted_server.script(Rule(key="Basic dXNlcjpwQHc=", answer="login"), Rule(key=KEY, answer="key"))
        assert ask(url, api_key=None).text == "login"
        assert ask(url).text == "key"

    def test_a_base_url_with_the_path_or_a_query_works(self, scripted_server):
        for url in (
            f"{scripted_server.base_url}/",
            f"{scripted_server.base_url}/chat/completions?api-version=1",
        ):
            assert ask(url).text == "echo: hi"

    def test_as_many_as_allowed_are_out_at_once(self, scripted_server):
        scripted_server.script(Rule(held=True))

        async def main():
            client = OpenAIClient(base_url=scripted_server.base_url, concurrency=32)
            asked = [asyncio.create_task(client.complete(body(str(n)), timeout=20)) for n in range(32)]
            await there(scripted_server, in_flight=32)
            scripted_server.script()
            await asyncio.gather(*asked)
            await client.aclose()

        run_still(main())

    def test_rate_headers_come_along(self):
        with ScriptedServer(
            options=EndpointOptions(limits=AccountLimits(requests=60, tokens=1000))
        ) as server:
            rate = ask(server).rate
        assert (rate.limit_requests, rate.remaining_requests) == (60, 59)
        assert (rate.limit_tokens, rate.remaining_tokens) == (1000, 994)
        assert 59 < rate.reset_tokens <= 60

    def test_compressed_answers_are_read(self, scripted_server):
        ask(scripted_server)
        assert "gzip" in scripted_server.requests[0].headers["accept-encoding"]


class TestFailures:
    @pytest.mark.parametrize(
        ("rule", "kind", "code"),
        [
            (Rule(status=503), FailureKind.OVERLOADED, "http_503"),
            (Rule(status=429, headers={"retry-after": "2"}), FailureKind.RATE_LIMITED, "http_429"),
            (
                Rule(status=429, body={"error": {"code": "insufficient_quota"}}),
                FailureKind.QUOTA,
                "insufficient_quota",
            ),
            (Rule(status=401), FailureKind.AUTHENTICATION, "http_401"),
            (Rule(status=400), FailureKind.ROW, "http_400"),
            (Rule(status=404, text="<html>"), FailureKind.CONFIGURATION, "wrong_url"),
            (Rule(status=307, headers={"location": "/elsewhere"}), FailureKind.CONFIGURATION, "redirected"),
            (Rule(text="<html>hi</html>"), FailureKind.BAD_RESPONSE, "not_json"),
            (Rule(body={"error": {"message": "x"}}), FailureKind.BAD_RESPONSE, "error_in_200"),
            (Rule(body={"choices": []}), FailureKind.BAD_RESPONSE, "no_choices"),
            (Rule(cut=40), FailureKind.BAD_RESPONSE, "not_json"),
            (Rule(status=204, text=""), FailureKind.BAD_RESPONSE, "not_json"),
            (Rule(fault="drop"), FailureKind.CONNECTION, "connection_lost"),
            (Rule(fault="half"), FailureKind.CONNECTION, "connection_lost"),
        ],
    )
    def test_C14_C13_each_is_one_request_and_one_call_error(self, scripted_server, rule, kind, code):
        scripted_server.script(rule)
        error = ask(scripted_server)
        assert (error.kind, error.code) == (kind, code)
        assert scripted_server.stats()["requests"] == 1

    @pytest.mark.parametrize("status", [201, 203, 206])
    def test_a_completion_counts_whatever_success_it_comes_with(self, scripted_server, status):
        message = {"role": "assistant", "content": "paid"}
        scripted_server.script(Rule(status=status, body={"choices": [{"message": message}]}))
        assert ask(scripted_server).text == "paid"

    @pytest.mark.parametrize("rule", [Rule(fault="hang", times=1), Rule(held=True, times=1)])
    def test_C13_a_server_that_does_not_answer_in_time_is_given_up(self, scripted_server, rule):
        scripted_server.script(rule)

        async def main():
            client = OpenAIClient(base_url=scripted_server.base_url)
            task = asyncio.create_task(client.complete(body("a"), timeout=20))
            await there(scripted_server, in_flight=1)
            await time_passes(20)
            with pytest.raises(CallError) as caught:
                await task
            assert (await client.complete(body("b"), timeout=20)).text == "echo: b"
            await client.aclose()
            return caught.value

        error = run_still(main())
        assert (error.kind, error.code, str(error)) == (
            FailureKind.TIMEOUT,
            "timeout",
            "no whole answer within 20 s",
        )
        assert scripted_server.stats()["requests"] == 2

    def test_cancelling_is_no_failure(self, scripted_server):
        scripted_server.script(Rule(fault="hang"))

        async def main():
            client = OpenAIClient(base_url=scripted_server.base_url)
            task = asyncio.create_task(client.complete(body(), timeout=20))
            await there(scripted_server, in_flight=1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await client.aclose()

        run_still(main())

    def test_nobody_there(self, free_port):
        error = ask(f"http://user:pw@127.0.0.1:{free_port}/v1")
        assert (error.kind, error.code) == (FailureKind.CONNECTION, "connect_failed")
        assert f"cannot connect to 127.0.0.1:{free_port}" in str(error)
        assert "pw" not in str(error)

    def test_no_such_host(self):
        error = ask("http://no-such-host.invalid/v1")
        assert (error.kind, error.code) == (FailureKind.CONNECTION, "connect_failed")
        assert "no-such-host.invalid" in str(error)

    def test_no_tls_on_the_other_side(self, scripted_server):
        error = ask(scripted_server.base_url.replace("http:", "https:"))
        assert error.kind is FailureKind.CONNECTION

    def test_a_certificate_that_nobody_signed(self, tmp_path):
        key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
        subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)

        async def main():
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(certificate, key)
            server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=context)
            client = OpenAIClient(base_url=f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1")
            with pytest.raises(CallError) as caught:
                await client.complete(body(), timeout=20)
            await client.aclose()
            server.close()
            return caught.value

        error = asyncio.run(main())
        assert (error.kind, error.code) == (FailureKind.CONFIGURATION, "tls_certificate")

    def test_the_client_works_again_after_any_failure(self, scripted_server):
        scripted_server.script(
            Rule(fault="drop", times=1), Rule(fault="half", times=1), Rule(status=500, times=1)
        )
        assert [getattr(each, "text", None) for each in ask(scripted_server, *[body()] * 4)] == [
            None,
            None,
            None,
            "echo: hi",
        ]


class TestSecrets:
    def test_an_echoed_key_is_taken_out(self, scripted_server):
        scripted_server.script(
            Rule(status=401, body={"error": {"message": f"Wrong key {KEY} and team t0p-secret"}})
        )
        error = ask(scripted_server, headers={"x-team": "t0p-secret"})
        assert str(error).startswith("HTTP 401: Wrong key *** and team ***")

    def test_repr_shows_the_address_only(self):
        client = OpenAIClient(base_url="http://user:pw@localhost/v1?key=abc", api_key=KEY)
        assert repr(client) == "<OpenAIClient http://localhost/v1/chat/completions>"

    def test_failures_carry_no_exception_that_knows_more(self, scripted_server):
        scripted_server.script(Rule(fault="drop"))
        error = ask(scripted_server, body("patient 4711"))
        assert error.__cause__ is None
        assert error.__suppress_context__
        assert "4711" not in str(error)


class TestConstruction:
    @pytest.mark.parametrize(
        "url",
        [
            "localhost:8000/v1",
            "ftp://host/v1",
            "http://",
            "https://host:99999/v1",
            "nonsense",
            r"http://host\x/v1",
            "http://my host/v1",
            "http://host/v\n1",
        ],
    )
    def test_a_url_that_is_none_is_refused(self, url):
        with pytest.raises(LLMInputError, match="base URL must be an http or https URL"):
            OpenAIClient(base_url=url)

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"api_key": b"sk-4711"}, "^api_key is a bytes: give a text, or None$"),
            ({"api_key": 4711}, "^api_key is a int"),
            ({"api_key": b""}, "^api_key is a bytes"),
            ({"base_url": b"http://host/v1"}, "^base_url is a bytes"),
            ({"base_url": URL("http://host/v1")}, "^base_url is a URL"),
        ],
    )
    def test_what_is_no_text_is_refused_and_not_shown(self, given, message):
        with pytest.raises(LLMInputError, match=message) as caught:
            OpenAIClient(**given)
        assert "4711" not in str(caught.value)

    def test_no_concurrency_is_refused(self):
        with pytest.raises(LLMInputError, match="concurrency is 0"):
            OpenAIClient(concurrency=0)

    @pytest.mark.parametrize("key", ["k\r\nX-Evil: 1", "k\0", "two words", "clé"])
    def test_a_key_that_cannot_be_sent_is_refused_and_not_shown(self, key):
        with pytest.raises(LLMInputError, match="paste the key again") as caught:
            OpenAIClient(api_key=key)
        assert key not in str(caught.value)

    @pytest.mark.parametrize("headers", [{"X-A": "a\nb"}, {"X-A": "é" * 3 + "😀"}, {"": "x"}])
    def test_headers_that_cannot_be_sent_are_refused(self, headers):
        with pytest.raises(LLMInputError, match="header"):
            OpenAIClient(headers=headers)

    def test_importing_it_needs_no_airflow(self):
        code = "import airflow_llm_provider.clients.openai, sys; assert 'airflow' not in sys.modules"
        subprocess.run([sys.executable, "-c", code], check=True)
