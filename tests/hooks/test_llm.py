from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from airflow_llm_provider.clients.tls import ssl_context
from airflow_llm_provider.engine.limits.rate_limits import RateLimits
from airflow_llm_provider.errors import LLMInputError
from airflow_llm_provider.hooks.llm import LLMHook
from airflow_llm_provider.testing.scripted_server import ScriptedServer
from airflow_llm_provider.testing.server.endpoint import EndpointOptions

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionMessageParam

KEY = "sk-very-secret-0123456789"


class Connections:
    """Connections in the environment, as Airflow itself reads them there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def add(self, conn_id: str = "llm_default", **fields: Any) -> None:
        value = json.dumps({"conn_type": "llm", "host": "http://127.0.0.1:1/v1", **fields})
        self._monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", value)


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> Connections:
    return Connections(monkeypatch)


@pytest.fixture
def masked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was given to Airflow's masker."""
    values: list[str] = []
    monkeypatch.setattr("airflow.sdk.log.mask_secret", values.append)
    return values


class TestEndpoint:
    def test_comes_from_the_connection(self, connections: Connections) -> None:
        connections.add("mine", host="http://127.0.0.1:8080/v1", password=KEY)
        endpoint = LLMHook("mine").endpoint
        assert (endpoint.base_url, endpoint.api_key) == ("http://127.0.0.1:8080/v1", KEY)

    def test_a_missing_connection_says_how_to_create_it(self) -> None:
        with pytest.raises(LLMInputError, match="airflow connections add nobody --conn-type llm"):
            _ = LLMHook("nobody").endpoint

    def test_a_connection_of_airflows_openai_provider_works(self, connections: Connections) -> None:
        connections.add(conn_type="openai", host="", password=KEY)
        assert LLMHook().endpoint.base_url == "https://api.openai.com/v1"

    def test_a_connection_of_another_kind_is_refused(self, connections: Connections) -> None:
        connections.add(conn_type="postgres")
        with pytest.raises(LLMInputError, match="of type 'postgres': use one of type llm or openai"):
            _ = LLMHook().endpoint

    def test_secrets_beyond_the_password_are_masked(
        self, connections: Connections, masked: list[str]
    ) -> None:
        headers = {"X-Api-Key": "header-secret", "X-Team": "search"}
        connections.add(
            conn_type="openai",
            extra=json.dumps({"openai_client_kwargs": {"api_key": KEY, "default_headers": headers}}),
        )
        _ = LLMHook().endpoint
        assert {KEY, "header-secret"} <= {value for value in masked if isinstance(value, str)}
        assert "search" not in masked


class TestClient:
    def test_talks_to_the_endpoint(self, connections: Connections) -> None:
        connections.add(password=KEY)
        assert LLMHook().get_client(concurrency=4) is not None

    @pytest.mark.parametrize("key", [KEY, ""])
    def test_that_of_the_sdk_says_what_the_connection_says_and_nothing_of_the_environment(
        self,
        connections: Connections,
        scripted_server: ScriptedServer,
        monkeypatch: pytest.MonkeyPatch,
        key: str,
    ) -> None:
        for name in ("OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
            monkeypatch.setenv(name, "of-the-environment")
        extra = {"headers": {"X-Team": "search"}, "project": "proj-1"}
        connections.add(host=scripted_server.base_url, password=key, extra=extra)
        messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]
        with LLMHook().get_conn() as client:
            answer = client.chat.completions.create(model="m", messages=messages)
        assert answer.choices[0].message.content == "echo: hi"
        assert scripted_server.requests[0].authorized is bool(key)
        sent = scripted_server.requests[0].headers
        assert (sent["x-team"], sent["openai-project"]) == ("search", "proj-1")
        assert "openai-organization" not in sent
        assert "of-the-environment" not in sent.values()

    def test_that_of_the_sdk_takes_a_key_from_a_header_or_later(self, connections: Connections) -> None:
        messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]
        with ScriptedServer(options=EndpointOptions(api_key=KEY)) as server:
            connections.add(
                "header", host=server.base_url, extra={"headers": {"authorization": f"Bearer {KEY}"}}
            )
            connections.add("nothing", host=server.base_url)
            with LLMHook("header").get_conn() as client:
                client.chat.completions.create(model="m", messages=messages)
            with LLMHook("nothing").get_conn() as client:
                client.with_options(api_key=KEY).chat.completions.create(model="m", messages=messages)
            assert [request.authorized for request in server.requests] == [True, True]

    def test_that_of_the_sdk_trusts_whom_tasks_trust(
        self, connections: Connections, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        trusted: list[object] = []
        monkeypatch.setattr(
            "openai.DefaultHttpxClient", lambda *, verify, event_hooks: trusted.append(verify)
        )
        connections.add(password=KEY)
        LLMHook().get_conn()
        assert trusted == [ssl_context()]


class TestAccount:
    def test_is_known_by_the_connection_and_shared_by_the_key(self, connections: Connections) -> None:
        extra = {"requests_per_minute": 60, "limiter_url": "memory://"}
        connections.add("first", password=KEY, extra=extra)
        connections.add("second", password=KEY)
        connections.add("other", password=KEY, extra={"project": "proj-1"})
        first, second, other = (LLMHook(name).get_account() for name in ("first", "second", "other"))
        assert (first.name, first.weight, first.limiter_url) == ("first", 1, "memory://")
        assert first.limits == {"*": RateLimits(requests_per_minute=60)}
        assert first.key == second.key
        assert first.key != other.key
        assert KEY not in repr(first)

    def test_keys_in_headers_tell_accounts_apart(self, connections: Connections) -> None:
        connections.add("first", extra={"headers": {"api-key": "0123456789"}})
        connections.add("second", extra={"headers": {"api-key": "9876543210"}})
        assert LLMHook("first").get_account().key != LLMHook("second").get_account().key

    def test_has_a_weight_and_prices(self, connections: Connections) -> None:
        prices = {"m": {"input_per_mtok": 1, "output_per_mtok": 1}}
        connections.add(password=KEY, extra={"prices": prices})
        account = LLMHook().get_account(weight=3)
        assert account.weight == 3
        assert account.pricer.estimate("m", prompt_tokens=1_000_000, completion_tokens=0) == 1


class TestLimiterUrl:
    def test_is_airflows_own_machine_unless_set(self, connections: Connections) -> None:
        connections.add()
        assert LLMHook().limiter_url == "file://"

    def test_comes_from_the_configuration_before_the_default(
        self, connections: Connections, monkeypatch: pytest.MonkeyPatch, masked: list[str]
    ) -> None:
        monkeypatch.setenv("AIRFLOW__LLM__LIMITER_URL", "redis://:of%2Fredis@redis:6379/0")
        connections.add()
        assert LLMHook().limiter_url == "redis://:of%2Fredis@redis:6379/0"
        assert {"of%2Fredis", "of/redis"} <= set(masked)

    def test_comes_from_the_connection_before_the_configuration(
        self, connections: Connections, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AIRFLOW__LLM__LIMITER_URL", "redis://redis:6379/0")
        connections.add(extra={"limiter_url": "memory://"})
        assert LLMHook().limiter_url == "memory://"


class TestTestConnection:
    def test_reports_a_wrong_connection_instead_of_raising(self) -> None:
        works, text = LLMHook("nobody").test_connection()
        assert not works
        assert "does not exist" in text

    def test_reports_a_server_that_is_not_there(self, connections: Connections) -> None:
        connections.add(password=KEY, extra=json.dumps({"organization": "org-1", "project": "proj-1"}))
        works, text = LLMHook().test_connection()
        assert not works
        assert "http://127.0.0.1:1/v1 cannot be reached" in text
        assert KEY not in text
