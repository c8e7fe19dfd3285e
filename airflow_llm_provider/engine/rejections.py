"""Rows that are all rejected for the same reason: some endpoints answer a bad parameter with a bare HTTP 400."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_llm_provider.engine.status import RowStatus
from airflow_llm_provider.errors import LLMConfigurationError

if TYPE_CHECKING:
    from airflow_llm_provider.engine.call import CallError


class RejectionStreak:
    """Tells when it is the request rather than the rows that an endpoint rejects. Pure.

    That is so when the very first rows of a run all end as rejected, with one code. A row that ends otherwise, be it
    too long or filtered, shows that the endpoint looks at the rows, and settles the matter for good.

    :param most: rows that may be rejected so; ``None``: any number.
    """

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._watching = most is not None
        self._code: str | None = None
        self._count = 0

    def accepted(self) -> None:
        """Hear of a row that came to something else."""
        self._watching = False

    def rejected(self, error: CallError) -> LLMConfigurationError | None:
        """Hear of a row that its request ended; return what to stop the run with.

        :param error: of kind ``ROW``.
        """
        if not self._watching or self._most is None:
            return None
        if error.row_status is not RowStatus.REJECTED or self._code not in {None, error.code}:
            self._watching = False
            return None
        self._code = error.code
        self._count += 1
        if self._count < self._most:
            return None
        self._watching = False
        status = "" if error.status_code is None else f"HTTP {error.status_code}, "
        stop = LLMConfigurationError(
            f"The endpoint rejected each of the first {self._count} rows the same way ({status}{error.code}) and accepted "
            "none, so it is the request rather than the rows: check model, request_params and output_schema, then run "
            "again. If it is these rows, raise max_same_rejections"
        )
        stop.__cause__ = error
        return stop
