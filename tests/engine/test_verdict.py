"""One classifier decides what an attempt says about the endpoint."""

from __future__ import annotations

import pytest

from airflow_llm_provider.engine.call import RETRYABLE_KINDS, TERMINAL_KINDS, CallError, FailureKind, Reply
from airflow_llm_provider.engine.verdict import Verdict, verdict_of


class TestVerdictOf:
    def test_any_completion_is_a_success_whatever_its_content(self):
        assert verdict_of(Reply(text=None, refusal="no")) is Verdict.SUCCESS

    @pytest.mark.parametrize("kind", sorted(RETRYABLE_KINDS))
    def test_C11_transport_and_overload_count_against_the_endpoint(self, kind):
        assert verdict_of(CallError(kind, "x", "x")) is Verdict.DROPPED

    @pytest.mark.parametrize("kind", sorted(TERMINAL_KINDS | {FailureKind.ROW}))
    def test_C11_content_and_settings_do_not(self, kind):
        assert verdict_of(CallError(kind, "x", "x")) is Verdict.IGNORED

    def test_every_kind_is_either_retryable_or_terminal_or_the_rows_own(self):
        assert set(FailureKind) == RETRYABLE_KINDS | TERMINAL_KINDS | {FailureKind.ROW}
