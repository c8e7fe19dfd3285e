"""What stops a run says what, status, code and remedy."""

from __future__ import annotations

import pytest

from airflow_llm_provider.engine.call import TERMINAL_KINDS, CallError, FailureKind
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

    def test_C1_an_empty_account_is_sent_to_billing(self):
        assert "billing" in str(terminal_error(CallError(FailureKind.QUOTA, "insufficient_quota", "No.")))

    @pytest.mark.parametrize("kind", sorted(TERMINAL_KINDS))
    def test_C1_who_was_stopped_by_another_task_hears_the_same(self, kind):
        raised = halted_error(AccountHaltedError(kind))
        assert isinstance(raised, LLMTerminalError)
        assert type(raised) is CLASSES[kind]
        assert "another task" in str(raised)
