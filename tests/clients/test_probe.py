from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest

from airflow_llm_provider.clients.probe import probe
from airflow_llm_provider.clients.tls import ssl_context

if TYPE_CHECKING:
    from collections.abc import Callable

URL = "http://127.0.0.1:8080/v1"
KEY = "sk-very-secret-0123456789"

Answer = tuple[int, Any]


def ask(
    models: Answer, completions: Answer | None = None, *, base_url: str = URL
) -> tuple[bool, str, list[str]]:
    """Probe an endpoint that answers so, and return the requests it saw as well."""
    seen: list[str] = []

    def respond(request: httpx.Request) -> httpx.Response:
        seen.append(f"{request.method} {request.url.path}")
        answer = models if request.method == "GET" else completions
        assert answer is not None, "no second request is expected"
        assert request.headers["authorization"] == f"Bearer {KEY}"
        status, body = answer
        return (
            httpx.Response(status, json=body)
            if not isinstance(body, str)
            else httpx.Response(status, text=body)
        )

    works, text = probe(base_url, {"Authorization": f"Bearer {KEY}"}, transport=httpx.MockTransport(respond))
    assert KEY not in text
    return works, text, seen


def failing(error: Exception) -> Callable[[httpx.Request], httpx.Response]:
    def respond(request: httpx.Request) -> httpx.Response:
        raise error

    return respond


class TestAuthorities:
    def test_are_those_that_tasks_trust(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class TrustedError(Exception):
            pass

        def make(*, verify: object, **_: object) -> None:
            assert verify is ssl_context()
            raise TrustedError

        monkeypatch.setattr(httpx, "Client", make)
        with pytest.raises(TrustedError):
            probe(URL, {})

    def test_that_cannot_be_read_are_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SSL_CERT_FILE", "/nowhere/ca.pem")
        works, text = probe("https://127.0.0.1:1/v1", {})
        assert not works
        assert "check SSL_CERT_FILE" in text


class TestProbe:
    def test_names_models_that_are_served(self) -> None:
        listed = [{"id": name} for name in ("a", "b", "c", "d")]
        works, text, seen = ask((200, {"object": "list", "data": listed}))
        assert works
        assert text == f"{URL} serves 4 models: a, b, c, ..."
        assert seen == ["GET /v1/models"]

    def test_a_server_without_models_is_still_there(self) -> None:
        works, text, _ = ask((200, {"data": []}))
        assert works
        assert "0 models: none yet" in text

    @pytest.mark.parametrize("status", [401, 403])
    def test_a_refused_key_says_where_to_mend_it(self, status: int) -> None:
        works, text, _ = ask((status, {"error": {"message": f"Incorrect API key provided: {KEY}"}}))
        assert not works
        assert f"refuses the key (HTTP {status})" in text

    @pytest.mark.parametrize("body", ["<html>welcome</html>", {"hello": "world"}, {"data": 5}, [1]])
    def test_something_else_behind_the_url_is_not_taken_for_a_model(self, body: Any) -> None:
        works, text, _ = ask((200, body), base_url="http://127.0.0.1:8080")
        assert not works
        assert "try http://127.0.0.1:8080/v1" in text

    @pytest.mark.parametrize(
        "refusal",
        [
            (400, {"error": {"message": "model missing"}}),
            (422, {}),
            (404, {"error": {"code": "model_not_found"}}),
        ],
    )
    def test_a_server_without_a_model_list_is_asked_for_nothing_that_costs(self, refusal: Answer) -> None:
        works, text, seen = ask((404, "not found"), refusal)
        assert works
        assert "lists no models" in text
        assert seen == ["GET /v1/models", "POST /v1/chat/completions"]

    def test_a_wrong_path_gets_the_usual_remedy(self) -> None:
        works, text, _ = ask((404, ""), (404, ""), base_url="http://127.0.0.1:8080")
        assert not works
        assert text.endswith("try http://127.0.0.1:8080/v1")

    def test_a_key_refused_by_the_second_request_counts(self) -> None:
        works, text, _ = ask((405, ""), (401, {}))
        assert not works
        assert "refuses the key" in text

    def test_a_redirect_names_the_right_url(self) -> None:
        def respond(request: httpx.Request) -> httpx.Response:
            return httpx.Response(308, headers={"location": "https://gateway.example/v1/models"})

        works, text = probe(URL, {}, transport=httpx.MockTransport(respond))
        assert not works
        assert "https://gateway.example/v1/models" in text

    def test_an_unwell_server_is_no_wrong_key(self) -> None:
        works, text, _ = ask((503, "overloaded"))
        assert not works
        assert "HTTP 503" in text

    def test_silence_is_told_as_such(self) -> None:
        works, text = probe(
            URL, {}, timeout=3, transport=httpx.MockTransport(failing(httpx.ReadTimeout("slow")))
        )
        assert (works, text) == (
            False,
            f"{URL} did not answer within 3 s: is it reachable from this machine?",
        )

    def test_nobody_at_the_port_is_told_as_such(self, free_port: int) -> None:
        works, text = probe(f"http://127.0.0.1:{free_port}/v1", {})
        assert not works
        assert "cannot be reached (ConnectError" in text
