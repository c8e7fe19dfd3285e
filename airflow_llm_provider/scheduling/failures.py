"""How an error of this package ends a task: Airflow retries what a retry can mend, and nothing else."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from airflow_llm_provider.errors import (
    LLMFailureThresholdError,
    LLMInputError,
    LLMSourceNotFoundError,
    LLMTerminalError,
)
from airflow_llm_provider.hooks.compat import AirflowFailException

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def no_hopeless_retries() -> Iterator[None]:
    """Fail the task without an Airflow retry on errors that every further try would meet as well.

    Everything else passes unchanged, so that ``retries`` and, where Airflow has one, ``retry_policy`` see the error
    itself with its ``retry_after``.
    """
    try:
        yield
    except (LLMInputError, LLMTerminalError, LLMFailureThresholdError) as error:
        if is_hopeless(error):
            raise AirflowFailException(str(error)) from error
        raise


def is_hopeless(error: BaseException) -> bool:
    """Tell whether every further try would end with the same error."""
    if isinstance(error, LLMFailureThresholdError):
        return not error.asks_again
    # A source that is not there yet is mostly late.
    return isinstance(error, (LLMInputError, LLMTerminalError)) and not isinstance(
        error, LLMSourceNotFoundError
    )
