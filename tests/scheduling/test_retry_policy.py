from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from airflow_llm_provider.errors import (
    LLMAuthenticationError,
    LLMBudgetError,
    LLMFailureThresholdError,
    LLMInputError,
    LLMRetryableError,
    LLMSourceNotFoundError,
    LLMStateError,
)
from airflow_llm_provider.scheduling.retry_policy import LLMRetryPolicy


def decide(error: BaseException) -> Any:
    return LLMRetryPolicy().evaluate(error, try_number=1, max_tries=2, context=None)


class TestEvaluate:
    @pytest.mark.parametrize(("said", "waits"), [(90.0, 90), (0.0, 1), (9e9, 24 * 3600)])
    def test_waits_as_long_as_the_endpoint_said_within_bounds(self, said: float, waits: int) -> None:
        decision = decide(LLMRetryableError("later", retry_after=said))
        assert (decision.action.value, decision.retry_delay) == ("retry", timedelta(seconds=waits))
        assert decision.reason == "later"

    @pytest.mark.parametrize(
        "error",
        [
            LLMAuthenticationError("no"),
            LLMBudgetError("spent"),
            LLMInputError("wrong"),
            LLMFailureThresholdError("paid", asks_again=False),
        ],
    )
    def test_never_tries_again_what_no_try_mends(self, error: Exception) -> None:
        assert decide(error).action.value == "fail"

    @pytest.mark.parametrize(
        "error",
        [
            LLMRetryableError("down"),
            LLMSourceNotFoundError("late"),
            LLMStateError("storage"),
            LLMFailureThresholdError("busy", asks_again=True),
            RuntimeError("somebody else's"),
        ],
    )
    def test_leaves_the_rest_to_the_tasks_own_delay(self, error: Exception) -> None:
        assert decide(error).action.value == "default"


class TestSerialization:
    def test_says_nothing_that_differs_between_two_parses(self) -> None:
        assert repr(LLMRetryPolicy()) == repr(LLMRetryPolicy.deserialize(LLMRetryPolicy().serialize()))
