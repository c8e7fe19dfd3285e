"""Waiting for the endpoint without a worker: the task gives its slots back and comes back when it was told to."""

from __future__ import annotations

import datetime as dt
from contextlib import contextmanager
from typing import TYPE_CHECKING

from airflow_llm_provider.errors import LLMBusyError, LLMRetryableError
from airflow_llm_provider.hooks.compat import AirflowRescheduleException

if TYPE_CHECKING:
    import logging
    from collections.abc import Iterator

    from airflow.sdk import Context

#: Seconds; a shorter wait costs a retry, or an endpoint that is down would be waited for in silence, all day long.
#: Longer ones are those that somebody named: the endpoint, or the account's limits. So is any wait for another process
#: that works on the same rows.
_LONG = 300.0
#: The most times one try is put off.
_MOST_TIMES = 200
#: The longest time for which one try is put off, from the first time on.
_PATIENCE = dt.timedelta(days=1)


@contextmanager
def coming_back_later(context: Context, log: logging.Logger) -> Iterator[None]:
    """Put the task off when it is to wait for long, as sensors do: no retry is used up, no slot held.

    Only a mapped task: Airflow looks at the time of sensors and of mapped tasks in every version.
    """
    try:
        yield
    except LLMRetryableError as error:
        at = _comes_back_at(context, error)
        if at is None:
            raise
        log.warning(
            "%s. The task gives its slots back and goes on at %s",
            str(error).rstrip("."),
            at.isoformat(timespec="seconds"),
        )
        raise AirflowRescheduleException(at) from error  # type: ignore[no-untyped-call]


def _comes_back_at(context: Context, error: LLMRetryableError) -> dt.datetime | None:
    """Return when to go on; ``None``: not at all, leave it to Airflow's retries."""
    instance, seconds = context["ti"], error.retry_after
    if seconds is None or instance.map_index is None or instance.map_index < 0:
        return None
    if seconds <= _LONG and not isinstance(error, LLMBusyError):
        return None
    if context.get("task_reschedule_count", 0) >= _MOST_TIMES:
        return None
    now = dt.datetime.now(tz=dt.UTC)
    began = instance.get_first_reschedule_date(context) or now
    at = now + dt.timedelta(seconds=seconds)
    return at if at - began <= _PATIENCE else None
