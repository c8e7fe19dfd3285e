from __future__ import annotations

import json
import re
from typing import Any, ClassVar

import pytest
from airflow.sdk import Connection

from airflow_llm_provider.engine.limits.rate_limits import RateLimits
from airflow_llm_provider.errors import LLMInputError
from airflow_llm_provider.hooks.endpoint import Endpoint

SECRET = "sk-very-secret-0123456789"


def endpoint(**fields: Any) -> Endpoint:
    extra = fields.pop("extra", None)
    if isinstance(extra, dict):
        extra = json.dumps(extra)
    return Endpoint.from_connection(
        Connection(conn_id="llm_default", **{"conn_type": "llm", "extra": extra, **fields})
    )


class TestBaseUrl:
    @pytest.mark.parametrize(
        ("fields", "expected"),
        [
            ({}, "https://api.openai.com/v1"),
            ({"host": "  "}, "https://api.openai.com/v1"),
            ({"host": "http://127.0.0.1:8080/v1"}, "http://127.0.0.1:8080/v1"),
            ({"host": "http://127.0.0.1:8080/v1/"}, "http://127.0.0.1:8080/v1"),
            ({"host": "http://127.0.0.1:8080/v1/chat/completions"}, "http://127.0.0.1:8080/v1"),
            (
                {"host": "https://gateway.example/openai/deployments/x"},
                "https://gateway.example/openai/deployments/x",
            ),
            ({"host": "127.0.0.1", "port": 8080, "schema": "http"}, "http://127.0.0.1:8080"),
            ({"host": "127.0.0.1", "port": 8080, "schema": "v1"}, "http://127.0.0.1:8080/v1"),
            ({"host": "http://vllm", "port": 8000, "schema": "v1"}, "http://vllm:8000/v1"),
            ({"host": "localhost:11434/v1"}, "http://localhost:11434/v1"),
            ({"host": "[::1]:8080/v1"}, "http://[::1]:8080/v1"),
            ({"host": "api.example.com/v1"}, "https://api.example.com/v1"),
            ({"host": "api.example.com/v1", "schema": "HTTP"}, "http://api.example.com/v1"),
            ({"host": "https://API.Example.com/V1"}, "https://api.example.com/V1"),
        ],
    )
    def test_is_read_from_every_way_to_fill_the_form(self, fields: dict[str, Any], expected: str) -> None:
        assert endpoint(**fields).base_url == expected

    @pytest.mark.parametrize(
        "uri",
        [
            "llm://:key@http%3A%2F%2F127.0.0.1%3A8080%2Fv1",
            "llm://http://:key@127.0.0.1:8080/v1",
            "llm://:key@127.0.0.1:8080/v1",
        ],
    )
    def test_is_read_from_every_way_to_write_the_uri(self, uri: str) -> None:
        read = Endpoint.from_connection(Connection.from_uri(uri, conn_id="llm_default"))
        assert (read.base_url, read.api_key) == ("http://127.0.0.1:8080/v1", "key")

    def test_survives_the_uri_that_airflow_caches(self) -> None:
        first = Connection(conn_id="c", conn_type="llm", host="http://127.0.0.1:8080/v1", password="key")
        again = Connection.from_uri(first.get_uri(), conn_id="c")
        assert Endpoint.from_connection(again) == Endpoint.from_connection(first)

    @pytest.mark.parametrize(
        ("fields", "remedy"),
        [
            ({"host": "http://u:p@127.0.0.1/v1"}, "put the API key into the password field"),
            ({"host": "http://127.0.0.1/v1?api-version=1"}, "write the URL before /chat/completions only"),
            ({"host": "ftp://127.0.0.1/v1"}, "write it like https://api.openai.com/v1"),
            ({"host": "http://127.0.0.1:99999/v1"}, "write it like https://api.openai.com/v1"),
            ({"host": "http://:8080/v1"}, "write it like https://api.openai.com/v1"),
            ({"host": "http://127.0.0.1:1/v1", "port": 2}, "give one of them"),
            ({"host": "127.0.0.1", "port": 70000}, "give one from 1 to 65535"),
            ({"port": 8080}, "put the base URL into host"),
        ],
    )
    def test_refuses_what_it_cannot_be(self, fields: dict[str, Any], remedy: str) -> None:
        with pytest.raises(LLMInputError, match="connection 'llm_default'") as caught:
            endpoint(**fields)
        assert remedy in str(caught.value)


class TestKey:
    @pytest.mark.parametrize("password", [None, "", "  \n"])
    def test_may_be_blank_for_keyless_servers(self, password: str | None) -> None:
        assert endpoint(password=password).api_key is None

    def test_loses_the_newline_that_came_with_pasting(self) -> None:
        assert endpoint(password=f" {SECRET}\n").api_key == SECRET

    @pytest.mark.parametrize("bad", [f"{SECRET} {SECRET}", f"{SECRET}\u201d", f"{SECRET}\x00"])
    def test_that_no_header_can_carry_is_refused_without_showing_it(self, bad: str) -> None:
        with pytest.raises(LLMInputError, match="paste the key again") as caught:
            endpoint(password=bad)
        assert SECRET not in str(caught.value)

    def test_is_not_in_the_representation(self) -> None:
        shown = repr(endpoint(password=SECRET, extra={"headers": {"X-Key": SECRET}}))
        assert SECRET not in shown

    def test_does_not_come_from_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OPENAI_API_KEY", SECRET)
        assert endpoint(host="http://127.0.0.1:1/v1").api_key is None


class TestExtra:
    def test_fields_of_the_form_are_read(self) -> None:
        read = endpoint(
            extra={
                "organization": " org-1 ",
                "project": "proj-1",
                "headers": '{"X-Team": "search"}',
                "prices": {"mine": {"input": 1}},
            }
        )
        assert (read.organization, read.project) == ("org-1", "proj-1")
        assert (read.headers, read.prices) == ({"X-Team": "search"}, {"mine": {"input": 1}})
        assert read.ignored == ()

    def test_empty_form_fields_mean_nothing(self) -> None:
        read = endpoint(extra={"organization": "", "project": None, "headers": "", "prices": " "})
        assert read == endpoint()

    def test_prefixed_fields_of_an_imported_connection_are_read(self) -> None:
        assert endpoint(extra={"extra__llm__project": "proj-1"}).project == "proj-1"

    def test_a_connection_of_airflows_openai_provider_works_as_it_is(self) -> None:
        read = endpoint(
            conn_type="openai",
            password=None,
            extra={
                "openai_client_kwargs": {
                    "api_key": SECRET,
                    "base_url": "http://127.0.0.1:8080/v1",
                    "organization": "org-1",
                    "default_headers": {"X-Team": "search"},
                    "timeout": 3,
                    "max_retries": 9,
                }
            },
        )
        assert (read.base_url, read.api_key, read.organization) == (
            "http://127.0.0.1:8080/v1",
            SECRET,
            "org-1",
        )
        assert read.headers == {"X-Team": "search"}
        assert read.ignored == ("openai_client_kwargs.max_retries", "openai_client_kwargs.timeout")

    def test_names_without_effect_are_told(self) -> None:
        assert endpoint(extra={"organisation": "org-1"}).ignored == ("organisation",)

    @pytest.mark.parametrize(
        ("extra", "message"),
        [
            ("{not json", "its extra is not JSON"),
            ("[1]", "its extra is a JSON list"),
            ({"headers": "{"}, "its headers is not JSON"),
            ({"headers": {"X-Number": 1}}, "'X-Number' is not a printable ASCII string"),
            ({"headers": {"X-Line": "a\r\nb"}}, "'X-Line' is not a printable ASCII string"),
            ({"organization": 5}, "its organization is a int"),
            ({"prices": "[]"}, "its prices is a JSON list"),
        ],
    )
    def test_malformed_fields_are_named(self, extra: Any, message: str) -> None:
        with pytest.raises(LLMInputError, match="connection 'llm_default'") as caught:
            endpoint(extra=extra)
        assert message in str(caught.value)


class TestRateLimits:
    BY_MODEL: ClassVar[dict[str, Any]] = {
        "gpt-4o": {"requests_per_minute": 500, "tokens_per_minute": 30_000, "burst": 5},
        "*": {"requests_per_minute": 5000},
    }

    @pytest.mark.parametrize("written", [BY_MODEL, json.dumps(BY_MODEL)])
    def test_are_by_model_as_json_or_as_its_text(self, written: Any) -> None:
        assert endpoint(extra={"rate_limits": written}).rate_limits == {
            "gpt-4o": RateLimits(requests_per_minute=500, tokens_per_minute=30_000, burst=5),
            "*": RateLimits(requests_per_minute=5000),
        }

    @pytest.mark.parametrize(
        "extra",
        [
            {"requests_per_minute": 60, "tokens_per_minute": 9000},
            {"requests_per_minute": "60", "tokens_per_minute": " 9_000 "},
            {"rate_limits": {"requests_per_minute": 60, "tokens_per_minute": 9000}},
        ],
    )
    def test_are_those_of_every_model_when_none_is_named(self, extra: dict[str, Any]) -> None:
        expected = RateLimits(requests_per_minute=60, tokens_per_minute=9000)
        assert endpoint(extra=extra).rate_limits == {"*": expected}

    def test_fields_of_the_form_hold_for_the_models_that_have_none(self) -> None:
        extra = {"requests_per_minute": 60, "rate_limits": {"gpt-4o": {"requests_per_minute": 5}}}
        assert endpoint(extra=extra).rate_limits == {
            "gpt-4o": RateLimits(requests_per_minute=5),
            "*": RateLimits(requests_per_minute=60),
        }

    def test_are_not_known_when_nothing_is_said(self) -> None:
        read = endpoint(extra={"requests_per_minute": None, "tokens_per_minute": "", "rate_limits": ""})
        assert read.rate_limits == {}

    @pytest.mark.parametrize(
        ("extra", "message"),
        [
            ({"requests_per_minute": "many"}, "its requests_per_minute is 'many'"),
            ({"requests_per_minute": True}, "its requests_per_minute is True"),
            ({"tokens_per_minute": 0}, "tokens_per_minute is 0"),
            ({"rate_limits": "[]"}, "its rate_limits is a JSON list"),
            ({"rate_limits": {"gpt-4o": {"rpm": 5}}}, "rate_limits of 'gpt-4o' has unknown fields rpm"),
            (
                {"requests_per_minute": 5, "rate_limits": {"*": {"requests_per_minute": 6}}},
                "its requests_per_minute and its rate_limits both say",
            ),
        ],
    )
    def test_that_make_no_sense_are_refused_by_name(self, extra: dict[str, Any], message: str) -> None:
        with pytest.raises(LLMInputError, match=f"connection 'llm_default': .*{re.escape(message)}"):
            endpoint(extra=extra)


class TestLimiterUrl:
    @pytest.mark.parametrize("url", ["memory://", "file:///var/lib/llm", "redis://redis:6379/0"])
    def test_is_taken_from_the_extra(self, url: str) -> None:
        assert endpoint(extra={"limiter_url": url}).limiter_url == url

    @pytest.mark.parametrize("extra", [{}, {"limiter_url": " "}])
    def test_is_open_when_nothing_is_said(self, extra: dict[str, Any]) -> None:
        assert endpoint(extra=extra).limiter_url is None

    @pytest.mark.parametrize("url", ["redis:6379", "/var/lib/llm", f"http://:{SECRET}@redis"])
    def test_that_names_nothing_shared_is_refused_without_being_quoted(self, url: str) -> None:
        with pytest.raises(LLMInputError, match="its limiter_url is not understood") as caught:
            endpoint(extra={"limiter_url": url})
        assert url not in str(caught.value)

    def test_is_in_no_repr_since_it_may_hold_a_password(self) -> None:
        assert SECRET not in repr(endpoint(extra={"limiter_url": f"redis://:{SECRET}@redis"}))
