"""The engine: rows in, outcomes out, at most ``concurrency`` requests in flight between.

A fixed set of workers pull requests as they get free, so that memory does not grow with the rows. A row that waits
(for capacity, for its next attempt) keeps its worker.

What stops a run, and what happens then:

* :meth:`Engine.stop`, an error that every row would meet, a source, limiter or gate that fails: no request goes out
  any more, waits end at once, requests in flight have a grace to come back and are handed over, then are cancelled.
* ``on_outcome`` fails: nothing more can be kept, so requests in flight are cancelled at once.
* Cancellation, or an exception that is no :class:`Exception` (a task timeout raised by a signal): at once as well.

Rows that have not ended then are pending: nothing was handed over for them. A bug of client, judge, price list or
observer is contained in its row; the row's words and costs are kept, observers hear of it, and only a streak of rows
that all end with a bug stops the run, with that bug's own exception.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING

from airflow_llm_provider.engine.admission import Admission
from airflow_llm_provider.engine.clock import Clock, SystemClock
from airflow_llm_provider.engine.config import EngineConfig
from airflow_llm_provider.engine.cooldown import Cooldown
from airflow_llm_provider.engine.crew import Crew
from airflow_llm_provider.engine.events import BugFound, RowDone, Stopping, Waiting, WaitReason
from airflow_llm_provider.engine.exchange import Exchanger
from airflow_llm_provider.engine.feed import Feed
from airflow_llm_provider.engine.limiter import CostExceedsLimitError, Unlimited
from airflow_llm_provider.engine.referee import Referee
from airflow_llm_provider.engine.report import EngineReport, Tally
from airflow_llm_provider.engine.retry import RetryPolicy
from airflow_llm_provider.engine.row import RowInProgress

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Callable, Iterable, Sequence

    from airflow_llm_provider.engine.call import Judge, ModelClient, Outcome, Request
    from airflow_llm_provider.engine.events import Event, Observer
    from airflow_llm_provider.engine.exchange import Exchange
    from airflow_llm_provider.engine.gate import Gate
    from airflow_llm_provider.engine.limiter import Limiter, Reservation
    from airflow_llm_provider.engine.usage import Usage


class Engine:
    """Sends one dataset's requests and hands over how each row ended. Good for one run.

    :param client: sends one request; stays open, its owner closes it.
    :param judge: decides what a completion is worth.
    :param price: US dollars of one completion by model and tokens, ``None`` when unknown. Without it no cost is known.
    :param clock: time for everything the engine waits for.
    :param rng: source of all jitter.
    :param observer: hears of every event.
    :param limiter: the account's limits; by default none, but a refusal for the rate pauses every row of this run.
    :param gates: consulted before each attempt, in this order.
    """

    def __init__(
        self,
        client: ModelClient,
        judge: Judge,
        *,
        config: EngineConfig | None = None,
        price: Callable[[str | None, Usage], float | None] | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        observer: Observer | None = None,
        limiter: Limiter | None = None,
        gates: Sequence[Gate] = (),
    ) -> None:
        self._config = config = config or EngineConfig()
        self._clock = clock = clock or SystemClock()
        rng = rng or random.Random()  # noqa: S311 -- jitter, not a secret
        limiter = limiter or Unlimited(clock=clock, rng=rng)
        self._observer = observer
        self._priced = price is not None
        self._tally = Tally(priced=self._priced)
        self._referee = Referee(judge, RetryPolicy(config.retry, rng), price=price, on_bug=self._on_bug)
        self._admission = Admission(
            limiter, gates, clock=clock, max_wait=config.max_limit_wait, emit=self._emit
        )
        self._exchanger = Exchanger(
            client,
            limiter=limiter,
            gates=gates,
            cooldown=Cooldown(config.retry, rng),
            clock=clock,
            timeout=config.timeout,
            emit=self._emit if observer is not None else None,
        )
        self._crew = Crew(
            self._work,
            size=config.concurrency,
            probe_window=config.probe_window,
            stop_grace=config.stop_grace,
            drain_grace=config.drain_grace,
            clock=clock,
            on_halt=lambda reason, grace: self._emit(Stopping(reason=reason, grace=grace)),
        )
        self._feed = Feed(())
        self._on_outcome: Callable[[Outcome], None] | None = None
        self._started: float | None = None
        self._ended: float | None = None

    async def run(
        self,
        requests: Iterable[Request] | AsyncIterable[Request],
        on_outcome: Callable[[Outcome], None],
        *,
        total: int | None = None,
    ) -> EngineReport:
        """Send every request and hand over every outcome as soon as it exists, in the order of completion.

        :param requests: pulled one at a time, on the loop's thread, when a worker is free.
        :param on_outcome: keeps an outcome; called on the loop's thread. Its exception stops the run at once.
        :param total: rows of ``requests``, so that the report can count those never pulled as pending.
        :raises LLMTerminalError: when every further request would fail the same way.
        :raises LLMRetryableError: when nobody should go on now.
        """
        if self._started is not None:
            raise RuntimeError("an Engine is good for one run: make a new one")
        self._started = self._clock.monotonic()
        self._feed = Feed(requests)
        self._on_outcome = on_outcome
        self._tally.total = total
        try:
            await self._crew.run()
        finally:
            self._on_outcome = None
            self._ended = self._clock.monotonic()
            await self._feed.aclose()
        return self.report

    def stop(self, reason: str) -> None:
        """End the run early: :meth:`run` returns a report that says so.

        Callable from any thread and from a signal handler, before and during the run. Waits end at once; requests
        in flight get ``stop_grace`` seconds, or none from a second call on.
        """
        self._crew.stop(reason)

    @property
    def report(self) -> EngineReport:
        """How the run went, or goes so far: also there after :meth:`run` has raised."""
        now = self._clock.monotonic() if self._ended is None else self._ended
        tally = self._tally
        complete = tally.ended == tally.pulled and (self._feed.exhausted or tally.pulled == tally.total)
        return tally.report(
            seconds=0.0 if self._started is None else now - self._started,
            interrupted=self._crew.stopped and not complete,
            stop_reason=None if complete else self._crew.halt_reason,
        )

    async def _work(self) -> None:
        """Do one worker's job."""
        while not self._crew.halting:
            request = await self._feed.next()
            if request is None:
                return
            self._tally.pulled += 1
            await self._answer(request)

    async def _answer(self, request: Request) -> None:
        """Bring one row to its end, unless the run ends first."""
        row = RowInProgress(request, priced=self._priced)
        while True:
            try:
                reservation = await self._admission.admit(request)
            except CostExceedsLimitError as error:
                self._hand_over(row.too_large(error))
                return
            if self._crew.halting:
                await self._admission.withdraw(request, reservation)
                return
            wait = await self._attempt(row, reservation)
            if wait is None or self._crew.halting:
                return
            if wait > 0:
                self._emit(Waiting(index=request.index, reason=WaitReason.BACKOFF, seconds=wait))
                await self._clock.sleep(wait)

    async def _attempt(self, row: RowInProgress, reservation: Reservation) -> float | None:
        """Send one request and act on its result; return the wait before the next, ``None`` when there is none."""
        worker = asyncio.current_task()
        assert worker is not None  # noqa: S101 -- workers are tasks
        self._crew.engage(worker)
        try:
            row.attempts += 1
            self._tally.sent(attempt=row.attempts)
            exchange = await self._exchanger.send(row.request, row.attempts)
            # Handed over before anything else is awaited: from here on a cancellation loses nothing.
            wait = self._take_in(row, exchange)
            await self._settle(exchange, reservation)
            return wait
        finally:
            self._crew.disengage(worker)
            self._crew.probe_over()

    def _take_in(self, row: RowInProgress, exchange: Exchange) -> float | None:
        cost_usd = self._referee.price(exchange)
        self._tally.came_back(exchange.result, cost_usd)
        try:
            self._exchanger.announce(exchange, cost_usd)
        except Exception as error:  # noqa: BLE001 -- a gate's failure ends the run, but not before the answer is kept
            self._crew.halt(error)
        ruling = self._referee.rule(row, exchange, cost_usd)
        if ruling.outcome is not None:
            self._hand_over(ruling.outcome)
        if ruling.stop is not None:
            self._crew.halt(ruling.stop)
        return ruling.wait

    async def _settle(self, exchange: Exchange, reservation: Reservation) -> None:
        try:
            await self._exchanger.settle(exchange, reservation)
        except Exception as error:  # noqa: BLE001 -- a limiter that cannot be asked is never "no limit"
            self._crew.halt(error)

    def _hand_over(self, outcome: Outcome) -> None:
        on_outcome = self._on_outcome
        if on_outcome is None:  # it failed before: the row stays pending
            return
        try:
            on_outcome(outcome)
        except Exception as error:  # noqa: BLE001 -- raised again by run()
            self._on_outcome = None
            self._crew.halt(error, grace=0.0)
            return
        self._tally.row_ended(outcome)
        if self._observer is not None:
            self._emit(
                RowDone(
                    index=outcome.index,
                    status=outcome.status,
                    code=outcome.code,
                    attempts=outcome.attempts,
                    usage=outcome.usage,
                    cost_usd=outcome.cost_usd,
                )
            )

    def _on_bug(self, where: str, error: BaseException) -> None:
        self._tally.bugs += 1
        self._emit(BugFound(where=where, error=error))

    def _emit(self, event: Event) -> None:
        if self._observer is None:
            return
        try:
            self._observer.on_event(event)
        except Exception as error:  # noqa: BLE001 -- watching must not cost an answer
            self._tally.bugs += 1
            with contextlib.suppress(Exception):
                self._observer.on_event(BugFound(where="observer", error=error))
