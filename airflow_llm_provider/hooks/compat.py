"""Names that Airflow 3.1 and Airflow 3.3 keep in different modules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import BaseOperator

if TYPE_CHECKING:
    from airflow.sdk.exceptions import (
        AirflowFailException,
        AirflowNotFoundException,
        AirflowRescheduleException,
        AirflowSkipException,
    )
else:
    try:
        from airflow.sdk.exceptions import (
            AirflowFailException,
            AirflowNotFoundException,
            AirflowRescheduleException,
            AirflowSkipException,
        )
    except ImportError:  # Airflow 3.1
        from airflow.exceptions import (
            AirflowFailException,
            AirflowNotFoundException,
            AirflowRescheduleException,
            AirflowSkipException,
        )

__all__ = [
    "DOUBLING_BACKOFF",
    "AirflowFailException",
    "AirflowNotFoundException",
    "AirflowRescheduleException",
    "AirflowSkipException",
    "airflow_option",
]


def airflow_option(section: str, key: str, *, fallback: str) -> str:
    """Read one option of the Airflow configuration as this process sees it.

    :param fallback: the value when it is set nowhere.
    """
    try:
        from airflow.sdk import conf  # noqa: PLC0415 -- Airflow 3.1 has it elsewhere
    except ImportError:
        from airflow.configuration import conf  # type: ignore[assignment]  # noqa: PLC0415
    value = conf.get(section, key, fallback=fallback)
    return fallback if value is None or value == "" else str(value)


#: Doubles the delay with every retry: a multiplier since Airflow 3.2, a switch before.
DOUBLING_BACKOFF: float = True if isinstance(BaseOperator.retry_exponential_backoff, bool) else 2.0
