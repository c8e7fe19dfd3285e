"""A readable line every few seconds: done, ok, failed, reused, tokens per second, time left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_llm_provider.engine.circuit_state import CircuitState
from airflow_llm_provider.engine.events import (
    AccountLost,
    AttemptFinished,
    BreakerChanged,
    BudgetUntold,
    BudgetUsed,
    BugFound,
    Event,
    Paused,
    RowDone,
    Stopping,
    Waiting,
    WaitReason,
)
from airflow_llm_provider.engine.status import RowStatus

if TYPE_CHECKING:
    import logging

    from airflow_llm_provider.engine.clock import Clock

#: A wait for capacity that is worth a line, in seconds; shorter ones only space requests out.
_LONG_WAIT = 5.0


class ProgressLog:
    """Listens to the engine and tells the log how it goes.

    :param label: the shard's label, first in every line.
    :param rows: rows of the shard.
    :param settled: rows that were settled before the first request: reused, or never to be sent.
    :param reused: the part of them whose answer was already there.
    """

    def __init__(
        self, label: str, *, rows: int, settled: int, reused: int, clock: Clock, log: logging.Logger
    ) -> None:
        self._label = label
        self._rows = rows
        self._settled = settled
        self._reused = reused
        self._clock = clock
        self._log = log
        self._began = clock.monotonic()
        self._succeeded = 0
        self._failed = 0
        self._tokens = 0
        self._waited = self._waits = False
        self._told_at, self._told_waited = self._began, 0.0

    def on_event(self, event: Event) -> None:
        """Take note of one event."""
        if isinstance(event, RowDone):
            if event.status is RowStatus.SUCCESS:
                self._succeeded += 1
            else:
                self._failed += 1
        elif isinstance(event, AttemptFinished):
            if event.usage is not None:
                self._tokens += event.usage.total_tokens
        elif isinstance(event, Waiting):
            self._on_waiting(event)
        else:
            self._on_incident(event)

    def copied(self, count: int) -> None:
        """Count rows that took another row's answer."""
        self._settled += count
        self._reused += count

    def _on_waiting(self, event: Waiting) -> None:
        """Tell of a long wait for capacity, once until it is over."""
        if event.reason is not WaitReason.LIMIT or event.seconds < _LONG_WAIT:
            return
        if not self._waits:
            self._log.info("%s: waiting %.0f s for the account's limits", self._label, event.seconds)
        self._waits = self._waited = True

    def _on_incident(self, event: Event) -> None:
        if isinstance(event, Paused):
            self._log.warning(
                "%s: the endpoint asked everyone%s to wait %.1f s",
                self._label,
                _on(event.account),
                event.seconds,
            )
        elif isinstance(event, BreakerChanged):
            self._on_breaker(event)
        elif isinstance(event, AccountLost):
            self._log.error("%s: goes on without account %s: %s", self._label, event.account, event.reason)
        elif isinstance(event, BudgetUsed):
            self._log.warning("%s: %.0f %% of the run's budget is used", self._label, 100 * event.share)
        elif isinstance(event, BudgetUntold):
            self._log.warning(
                "%s: %s tokens that were spent last could not be told to the account book of the run's budget, and nobody "
                "else can spend them: %s",
                self._label,
                f"{event.tokens:,}",
                event.reason,
            )
        elif isinstance(event, Stopping):
            self._log.warning(
                "%s: stopping (%s); answers in flight get %.0f s", self._label, event.reason, event.grace
            )
        elif isinstance(event, BugFound):
            # The exception's text may quote an answer, so only its type is told.
            self._log.error("%s: %s raised %s", self._label, event.where, type(event.error).__name__)

    def _on_breaker(self, event: BreakerChanged) -> None:
        what = f"the endpoint{_on(event.account)}{f' for {event.model}' if event.model else ''}"
        if event.state is CircuitState.CLOSED:
            self._log.warning("%s: %s answers again", self._label, what)
        else:
            why = f" ({event.reason})" if event.reason else ""
            self._log.warning("%s: %s does not answer%s: asking it once in a while", self._label, what, why)

    def tell(self, waited: float = 0.0) -> None:
        """Write one progress line.

        :param waited: seconds that rows, taken together, have waited so far for limits and the like.
        """
        now = self._clock.monotonic()
        # At least one row waited all the time since the last line.
        waiting = waited - self._told_waited > max(now - self._told_at, 1.0)
        self._told_at, self._told_waited = now, waited
        self._waits, self._waited = self._waits and self._waited, False
        seconds = max(self._clock.monotonic() - self._began, 1e-9)
        asked = self._succeeded + self._failed
        done = asked + self._settled
        left = self._rows - done
        # Before the first answer nobody knows how fast it goes.
        pace = (
            f", {self._tokens / seconds:.0f} tokens/s, {_duration(left * seconds / asked)} left"
            if asked
            else ""
        )
        self._log.info(
            "%s: %s of %s rows done (%s ok, %s without an answer, %s reused)%s%s",
            self._label,
            f"{done:,}",
            f"{self._rows:,}",
            f"{self._succeeded:,}",
            f"{self._failed:,}",
            f"{self._reused:,}",
            pace,
            ", held back by the account's limits or an endpoint that does not answer" if waiting else "",
        )


def _on(account: str | None) -> str:
    return f" on {account}" if account else ""


def _duration(seconds: float) -> str:
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    minutes, rest = divmod(rest, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
