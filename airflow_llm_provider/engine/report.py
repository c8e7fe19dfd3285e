"""How a run went, in numbers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_llm_provider.engine.call import CallError
from airflow_llm_provider.engine.usage import Usage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_llm_provider.engine.call import Outcome, Reply


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineReport:
    """How a run went, or goes so far.

    :param rows_by_status: ended rows by row status; their outcomes have been handed over.
    :param requests: requests sent.
    :param retries: requests that were a second or later attempt at their row.
    :param usage: tokens billed, those of rows that have not ended included. What the endpoint bills for requests that
        were given up is unknown and not in it.
    :param cost_usd: US dollars for ``usage``; ``None``: some of it has no known price.
    :param errors: ended rows by error code.
    :param failed_requests: failed requests by error code, whether or not another attempt mended it.
    :param pending: rows that have not ended: of ``total`` when :meth:`Engine.run` was told it, else of the rows
        pulled from the source.
    :param interrupted: whether :meth:`Engine.stop` ended the run early.
    :param stop_reason: why the run ended early; ``None``: it did not.
    :param bugs: times that client, judge, price list or observer raised what they must not raise.
    :param waited_seconds: time that rows, taken together, waited for capacity, a pause or a gate.
    :param seconds: time from start to end, or to now.
    """

    rows_by_status: Mapping[str, int] = field(default_factory=dict)
    requests: int = 0
    retries: int = 0
    usage: Usage = field(default_factory=Usage)
    cost_usd: float | None = None
    errors: Mapping[str, int] = field(default_factory=dict)
    failed_requests: Mapping[str, int] = field(default_factory=dict)
    pending: int = 0
    interrupted: bool = False
    stop_reason: str | None = None
    bugs: int = 0
    waited_seconds: float = 0.0
    seconds: float = 0.0

    @property
    def rows(self) -> int:
        """Rows that have ended."""
        return sum(self.rows_by_status.values())


class Tally:
    """Counts that grow while a run goes on."""

    __slots__ = (
        "_cached",
        "_completion",
        "_prompt",
        "bugs",
        "cost_usd",
        "ended",
        "errors",
        "failed_requests",
        "pulled",
        "requests",
        "retries",
        "rows_by_status",
        "total",
        "waited_seconds",
    )

    def __init__(self, *, priced: bool) -> None:
        self.total: int | None = None
        self.pulled = 0
        self.ended = 0
        self.requests = 0
        self.retries = 0
        self.bugs = 0
        self.waited_seconds = 0.0
        self.cost_usd: float | None = 0.0 if priced else None
        self.rows_by_status: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.failed_requests: Counter[str] = Counter()
        self._prompt = self._completion = self._cached = 0

    def sent(self, *, attempt: int) -> None:
        """Count a request that went out as a row's ``attempt``."""
        self.requests += 1
        if attempt > 1:
            self.retries += 1

    def came_back(self, result: Reply | CallError, cost_usd: float | None) -> None:
        """Count a request that is over, and what a completion cost."""
        self.requests += result.requests - 1
        self.retries += result.requests - 1
        if isinstance(result, CallError):
            self.failed_requests[result.code] += 1
            return
        usage = result.usage
        if usage is not None:
            self._prompt += usage.prompt_tokens
            self._completion += usage.completion_tokens
            self._cached += usage.cached_tokens
        self.cost_usd = None if self.cost_usd is None or cost_usd is None else self.cost_usd + cost_usd

    def row_ended(self, outcome: Outcome) -> None:
        """Count a row whose outcome has been handed over."""
        self.ended += 1
        self.rows_by_status[outcome.status.value] += 1
        if outcome.code is not None:
            self.errors[outcome.code] += 1

    def report(self, *, seconds: float, interrupted: bool, stop_reason: str | None) -> EngineReport:
        """Return the counts as they are now."""
        rows = self.pulled if self.total is None else self.total
        return EngineReport(
            rows_by_status=dict(self.rows_by_status),
            requests=self.requests,
            retries=self.retries,
            usage=Usage(
                prompt_tokens=self._prompt,
                completion_tokens=self._completion,
                cached_tokens=self._cached,
            ),
            cost_usd=self.cost_usd,
            errors=dict(self.errors),
            failed_requests=dict(self.failed_requests),
            pending=max(rows - self.ended, 0),
            interrupted=interrupted,
            stop_reason=stop_reason,
            bugs=self.bugs,
            waited_seconds=self.waited_seconds,
            seconds=seconds,
        )
