"""What stops a run says what, status, code and remedy."""

from __future__ import annotations

import traceback

import pytest

from airflow_llm_provider.engine.call import TERMINAL_KINDS, CallError, FailureKind, Request
from airflow_llm_provider.engine.limiter import AccountHaltedError
from airflow_llm_provider.engine.terminal import halted_error, terminal_error
from airflow_llm_provider.errors import (
    LLMAuthenticationError,
    LLMConfigurationError,
    LLMQuotaError,
    LLMTerminalError,
)

CLASSES = {
    FailureKind.AUTHENTICATION: LLMAuthenticationError,
    FailureKind.QUOTA: LLMQuotaError,
    FailureKind.CONFIGURATION: LLMConfigurationError,
}


class TestTerminalError:
    @pytest.mark.parametrize("kind", sorted(TERMINAL_KINDS))
    def test_every_terminal_kind_has_its_class_and_names_status_code_and_request(self, kind):
        cause = CallError(kind, "some_code", "The words.", status_code=400, request_id="req_1")
        raised = terminal_error(cause)
        assert type(raised) is CLASSES[kind]
        assert raised.__cause__ is cause
        for part in ("HTTP 400", "some_code", "req_1", "The words.", "run again"):
            assert part in str(raised)

    def test_a_wrong_setting_that_shows_before_the_endpoint_is_asked_blames_no_parameter(self):
        cause = CallError(FailureKind.CONFIGURATION, "tls_certificate", "the TLS certificate has expired")
        assert "parameter" not in str(terminal_error(cause)).partition(". Check")[0]

    def test_C1_an_empty_account_is_sent_to_billing(self):
        assert "billing" in str(terminal_error(CallError(FailureKind.QUOTA, "insufficient_quota", "No.")))

    @pytest.mark.parametrize("kind", sorted(TERMINAL_KINDS))
    def test_C1_who_was_stopped_by_another_task_hears_the_same(self, kind):
        raised = halted_error(AccountHaltedError(kind))
        assert isinstance(raised, LLMTerminalError)
        assert type(raised) is CLASSES[kind]
        assert "another task" in str(raised)


def _request(text):
    messages = [{"role": "system", "content": "You sort tickets."}, {"role": "user", "content": text}]
    return Request(index=0, body={"messages": messages}, prompt_tokens=1, max_output_tokens=1)


class TestEcho:
    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("My card is 4111-1111-1111-1111", "cannot parse 'card is 4111-1111-1111-1111'"),
            ("My card is 4111-1111-1111-1111", "CARD  IS\n4111-1111"),
            ("two\nlines of text", "bad input: two lines of text"),
            ("caf\u00e9 au lait, s'il vous pla\u00eet", 'in "caf\\u00e9 au lait"'),
            ("4111-11", "no model 4111-11"),
        ],
    )
    def test_words_that_repeat_the_request_are_withheld_wherever_a_log_would_show_them(self, text, said):
        cause = CallError(FailureKind.CONFIGURATION, "some_code", f"HTTP 404: {said}", status_code=404)
        cause.__cause__ = ValueError(said)
        raised = terminal_error(cause, request=_request(text))
        told = "".join(traceback.format_exception(raised))
        assert said not in told
        assert "withheld" in str(raised)
        assert "HTTP 404, some_code" in str(raised)

    def test_a_code_that_repeats_it_is_replaced(self):
        cause = CallError(FailureKind.CONFIGURATION, "my secret ticket", "no", status_code=404)
        assert "secret" not in str(terminal_error(cause, request=_request("my secret ticket")))

    def test_other_words_are_told(self):
        cause = CallError(FailureKind.CONFIGURATION, "model_not_found", "The model `x` does not exist")
        raised = terminal_error(cause, request=_request("The model of this car is old"))
        assert "The model `x` does not exist" in str(raised)
        assert raised.__cause__ is cause
