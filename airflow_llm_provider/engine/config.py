"""How a run goes about its work. None of it changes what is asked, so none of it re-asks a row."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from airflow_llm_provider.engine.retry import RetryConfig
from airflow_llm_provider.errors import LLMInputError


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineConfig:
    """How a run goes about its work.

    :param concurrency: most requests in flight.
    :param timeout: seconds for one request.
    :param retry: how often a row is tried.
    :param stop_grace: seconds that requests in flight get to come back after :meth:`Engine.stop`, unless it says
        otherwise. Airflow kills a task five seconds after it asked it to end.
    :param drain_grace: the same after an error that stops the run. Longer, since nobody is in a hurry then and the
        answers are paid for.
    :param probe_window: seconds for which the first request is out alone, unless the limiter trusts its kind. A
        refused key, parameter or model mostly shows within it and then costs one request, not ``concurrency``. 0: no
        probe.
    :param max_limit_wait: seconds; a limiter or a pause that holds a request back for longer ends the run as
        retryable, so that nobody holds pool slots meanwhile. ``None``: wait as long as it takes.
    :param max_same_rejections: rows that may be rejected from the very first one on, all with one code, before that is
        taken for a fault of the request. ``None``: any number.
    """

    concurrency: int = 16
    timeout: float = 120.0
    retry: RetryConfig = field(default_factory=RetryConfig)
    stop_grace: float = 2.0
    drain_grace: float = 15.0
    probe_window: float = 0.25
    max_limit_wait: float | None = 300.0
    max_same_rejections: int | None = 10

    def __post_init__(self) -> None:
        if (
            isinstance(self.concurrency, bool)
            or not isinstance(self.concurrency, int)
            or self.concurrency < 1
        ):
            raise LLMInputError(
                f"EngineConfig.concurrency is {self.concurrency!r}: give a whole number of at least 1"
            )
        most = self.max_same_rejections
        if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
            raise LLMInputError(
                f"EngineConfig.max_same_rejections is {most!r}: give a whole number of at least 1, or None"
            )
        if not _is_seconds(self.timeout) or self.timeout == 0:
            raise LLMInputError(
                f"EngineConfig.timeout is {self.timeout!r}: give a finite number of seconds above 0"
            )
        for name in ("stop_grace", "drain_grace", "probe_window", "max_limit_wait"):
            value = getattr(self, name)
            if name == "max_limit_wait" and value is None:
                continue
            if not _is_seconds(value):
                raise LLMInputError(
                    f"EngineConfig.{name} is {value!r}: give a finite number of seconds, at least 0"
                )


def _is_seconds(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf
