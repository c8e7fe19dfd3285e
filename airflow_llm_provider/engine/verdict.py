"""What one attempt says about the endpoint. Decided here and nowhere else."""

from __future__ import annotations

from enum import StrEnum

from airflow_llm_provider.engine.call import RETRYABLE_KINDS, CallError, Reply


class Verdict(StrEnum):
    """What an attempt says about the endpoint's load and health, whatever it says about its row."""

    #: A completion came back, even if its content is of no use.
    SUCCESS = "success"
    #: No evidence about load: this row's content, a setting, a key, or we gave up on the request ourselves.
    IGNORED = "ignored"
    #: The endpoint could not, or would not, serve the request now.
    DROPPED = "dropped"


def verdict_of(result: Reply | CallError) -> Verdict:
    """Return the verdict on one attempt."""
    if isinstance(result, Reply):
        return Verdict.SUCCESS
    return Verdict.DROPPED if result.kind in RETRYABLE_KINDS else Verdict.IGNORED
