from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llm_provider.engine.call import TERMINAL_KINDS, CallError, FailureKind
from airflow_llm_provider.engine.status import RowStatus
from tests.clients.refusals import KINDS, ROWS, gemini, openai, refusal


class TestRefused:
    @pytest.mark.parametrize(("status", "body", "row_status"), ROWS)
    def test_C15_C16_ends_the_row_alone(self, status, body, row_status):
        error = refusal(status, body)
        if row_status is RowStatus.REJECTED and status == 413:
            row_status = RowStatus.REQUEST_TOO_LARGE
        assert (error.kind, error.row_status) == (FailureKind.ROW, row_status)
        assert error.status_code == status

    @pytest.mark.parametrize(("status", "body", "kind"), KINDS)
    def test_C1_C18_B9_means(self, status, body, kind):
        assert refusal(status, body).kind is kind

    def test_row_failures_quote_nothing_of_the_server(self):
        error = refusal(400, openai("Your text 'patient 4711' is bad", param="messages"))
        assert str(error) == "HTTP 400, parameter messages"

    def test_terminal_failures_say_what_the_server_said_and_what_to_do(self):
        error = refusal(
            400,
            openai(
                "Unsupported value: 'temperature' does not support 0.",
                code="unsupported_value",
                param="temperature",
            ),
        )
        assert str(error) == (
            "HTTP 400, unsupported_value, parameter temperature: Unsupported value: 'temperature' does not support 0. "
            "(change or drop the parameter in the CompletionSpec)"
        )

    def test_a_long_message_is_cut(self):
        assert len(str(refusal(401, openai("x" * 10_000)))) < 500

    def test_a_wrong_base_url_is_explained(self):
        assert "mostly ends in /v1" in str(refusal(404, b"404 page not found"))
        assert "mostly ends in /v1" in str(
            refusal(404, {"error": {"code": 404, "message": "File Not Found"}})
        )
        assert "mostly ends in /v1" in str(refusal(404, openai("Invalid URL (POST /chat/completions)")))
        moved = refusal(308, b"", {"location": "https://other.example/v1/chat/completions?token=s3cret"})
        assert "has moved to https://other.example/v1/chat/completions: use that" in str(moved)
        assert "s3cret" not in str(moved)

    @pytest.mark.parametrize(
        ("location", "said"),
        [
            ("https://me:s3cret@other.example/v1", "has moved to https://other.example/v1: use that"),
            ("//me:s3cret@other.example/v1", "has moved to //other.example/v1: use that"),
            ("http://[s3cret/v1", "has moved: ask its operator where"),
        ],
    )
    def test_a_login_in_a_redirect_is_not_shown(self, location, said):
        error = str(refusal(301, b"", {"location": location}))
        assert said in error
        assert "s3cret" not in error

    @pytest.mark.parametrize(
        "echoed",
        ["my-own-key-123", "sk-proj-abcdef123456", "Bearer eyJhbGciOi", "gsk_abcdefgh", "AIzaSyA1234567890"],
    )
    def test_secrets_are_taken_out(self, echoed):
        error = refusal(
            401, openai(f"Incorrect API key provided: {echoed}. Look it up."), secrets=["my-own-key-123"]
        )
        assert echoed not in str(error)
        assert "***" in str(error)

    def test_secrets_in_the_place_of_codes_and_parameters_are_taken_out(self):
        error = refusal(
            503, openai(code="my-own-key-123", param="a.t0p-secret"), secrets=["my-own-key-123", "t0p-secret"]
        )
        assert (error.code, str(error)) == ("***", "HTTP 503, ***, parameter a.***")

    def test_codes_are_codes_not_texts(self):
        assert refusal(400, openai(code="patient 4711 said", kind="<b>")).code == "http_400"
        assert refusal(500, b"").code == "http_500"

    def test_C3_C8_says_how_long_to_wait(self):
        assert refusal(429, b"", {"retry-after": "7"}).retry_after == 7
        assert refusal(503, b"", {"retry-after-ms": "250"}).retry_after == 0.25
        exhausted = {
            "x-ratelimit-remaining-tokens": "0",
            "x-ratelimit-reset-tokens": "6m0s",
            "x-ratelimit-reset-requests": "17ms",
        }
        error = refusal(429, b"", exhausted)
        assert error.retry_after == 360
        assert error.rate.reset_requests == 0.017
        assert refusal(429, gemini("PerMinute", "34s")).retry_after == 34
        assert refusal(429, b"", {"retry-after": "nonsense"}).retry_after is None

    def test_carries_the_request_id(self):
        assert refusal(500, b"", {"x-request-id": "req_1"}).request_id == "req_1"
        assert refusal(500, b"", {"apim-request-id": "az"}).request_id == "az"

    JSON = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
        lambda leaf: (
            st.lists(leaf, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "error",
                        "message",
                        "code",
                        "type",
                        "param",
                        "innererror",
                        "details",
                        "detail",
                        "loc",
                        "x",
                    ]
                ),
                leaf,
                max_size=5,
            )
        ),
        max_leaves=12,
    )

    @given(st.integers(201, 599), JSON)
    def test_any_body_becomes_a_call_error(self, status, body):
        error = refusal(status, body)
        assert isinstance(error, CallError)
        assert error.code == error.code.strip()
        assert len(str(error)) < 800

    @given(st.integers(201, 599), st.binary(max_size=100))
    def test_any_bytes_become_a_call_error(self, status, raw):
        assert isinstance(refusal(status, raw), CallError)

    @given(st.text(), st.sampled_from([400, 422, 413]))
    def test_C18_a_row_that_is_echoed_never_stops_everything(self, text, status):
        error = refusal(status, openai(f"Could not process the text: {text}", code=None, kind=None))
        assert error.kind not in TERMINAL_KINDS
