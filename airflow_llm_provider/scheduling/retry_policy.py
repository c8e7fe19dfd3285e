"""When Airflow tries a task again, for Airflow 3.3 and newer."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_llm_provider.errors import LLMRetryableError
from airflow_llm_provider.scheduling.failures import is_hopeless

if TYPE_CHECKING:
    from airflow.sdk import Context, RetryDecision, RetryPolicy
else:
    try:
        from airflow.sdk import RetryDecision, RetryPolicy
    except ImportError:  # before Airflow 3.3
        RetryDecision = None
        RetryPolicy = object

#: Whether this Airflow has retry policies.
RETRY_POLICIES = RetryDecision is not None
#: Bounds of a delay, in seconds: an endpoint that names none in between is not believed.
_SHORTEST = 1.0
_LONGEST = 24 * 3600.0
#: What Airflow keeps of a reason.
_REASON_LENGTH = 500


class LLMRetryPolicy(RetryPolicy):
    """Try again when the endpoint said it will take requests again, and never when it would not help.

    Only within the task's ``retries``. Errors that name no time, and those of others, are left to the task's own delay.
    """

    def evaluate(
        self,
        exception: BaseException,
        try_number: int,  # noqa: ARG002 -- Airflow passes these by name
        max_tries: int,  # noqa: ARG002
        context: Context | None = None,  # noqa: ARG002
    ) -> RetryDecision:
        """Decide by the error alone."""
        if is_hopeless(exception):
            return RetryDecision.fail(reason=str(exception)[:_REASON_LENGTH])
        if isinstance(exception, LLMRetryableError) and exception.retry_after is not None:
            seconds = min(max(exception.retry_after, _SHORTEST), _LONGEST)
            return RetryDecision.retry(
                delay=timedelta(seconds=seconds), reason=str(exception)[:_REASON_LENGTH]
            )
        return RetryDecision.default()

    def serialize(self) -> dict[str, Any]:
        """Return what distinguishes one policy from another: nothing."""
        return {}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> LLMRetryPolicy:  # noqa: ARG003 -- Airflow's signature
        """Return a policy."""
        return cls()

    def __repr__(self) -> str:
        return "LLMRetryPolicy()"
