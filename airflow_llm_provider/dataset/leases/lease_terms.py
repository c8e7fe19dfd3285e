"""How long leases last, and by which clocks."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_llm_provider.engine.clock import Clock, SystemClock
from airflow_llm_provider.errors import LLMInputError

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, kw_only=True)
class LeaseTerms:
    """How long leases last.

    :param duration: seconds for which a lease holds without being renewed.
    :param renewal: seconds between renewals.
    :param skew: seconds by which the clocks of two machines may differ.
    :param sleep: waits so many seconds.
    """

    duration: float = 60.0
    renewal: float = 15.0
    skew: float = 10.0
    clock: Clock = field(default_factory=SystemClock)
    sleep: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        if not 0 < self.renewal < self.duration or self.skew < 0:
            raise LLMInputError(
                f"LeaseTerms has renewal {self.renewal!r}, duration {self.duration!r} and skew {self.skew!r}: give a "
                "renewal above 0 and below the duration, and a skew of at least 0"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Deadline:
    """A moment by both clocks, of which the first to reach it counts.

    :param monotonic: which nobody sets, and which stands still while the machine sleeps.
    :param time: seconds since 1970, by which others go.
    """

    monotonic: float
    time: float

    def has_passed(self, clock: Clock) -> bool:
        """Tell whether it is over."""
        return clock.monotonic() >= self.monotonic or clock.time() >= self.time


#: A moment that does not come.
NEVER = Deadline(monotonic=math.inf, time=math.inf)
