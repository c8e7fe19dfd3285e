"""The engine: rows in, outcomes out, at most ``concurrency`` requests in flight between.

A fixed set of workers pull requests as they get free, so that memory does not grow with the rows. A row that waits
(for capacity, for its next attempt) keeps its worker.

What stops a run, and what happens then:

* :meth:`Engine.stop`, an error that every row would meet, a source, limiter or gate that fails: no request goes out
  any more, waits end at once, requests in flight have a grace to come back and are handed over, then are cancelled.
* ``on_outcome`` fails: nothing more can be kept, so requests in flight are cancelled at once.
* Cancellation, or an exception that is no :class:`Exception` (a task timeout raised by a signal): at once as well.

Rows without an answer are pending then: nothing was handed over for them. One with an unusable answer, which is paid
for, ends with it. A bug of client, judge, price list or observer is contained in its row; the row's words and costs are
kept, observers hear of it, and only a streak of rows that all end with a bug stops the run, with that bug's own
exception.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_llm_provider.engine.admission import Admission, Admitted
from airflow_llm_provider.engine.clock import Clock, SystemClock
from airflow_llm_provider.engine.config import EngineConfig
from airflow_llm_provider.engine.crew import Crew
from airflow_llm_provider.engine.events import BugFound, RowDone, Stopping, Waiting, WaitReason
from airflow_llm_provider.engine.feed import Feed
from airflow_llm_provider.engine.lane import open_lane
from airflow_llm_provider.engine.limiter import CostExceedsLimitError
from airflow_llm_provider.engine.referee import Referee
from airflow_llm_provider.engine.rejections import RejectionStreak
from airflow_llm_provider.engine.report import EngineReport, Tally
from airflow_llm_provider.engine.retry import RetryPolicy
from airflow_llm_provider.engine.route import Route
from airflow_llm_provider.engine.routing import Routing
from airflow_llm_provider.engine.row import RowInProgress

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Callable, Iterable

    from airflow_llm_provider.engine.budget.gate import BudgetGate
    from airflow_llm_provider.engine.call import Judge, ModelClient, Outcome, Request
    from airflow_llm_provider.engine.events import Event, Observer
    from airflow_llm_provider.engine.exchange import Exchange
    from airflow_llm_provider.engine.gate import Counter, Gate
    from airflow_llm_provider.engine.lane import Lane
    from airflow_llm_provider.engine.limiter import Limiter
    from airflow_llm_provider.engine.usage import Usage


class Engine:
    """Sends one dataset's requests and hands over how each row ended. Good for one run.

    :param client: sends one request; stays open, its owner closes it. Or several routes, each with a client, a price,
        a limiter and gates of its own; ``price`` and ``limiter`` are only for a single client.
    :param judge: decides what a completion is worth.
    :param price: US dollars of one completion by model and tokens, ``None`` when unknown. Without it no cost is known.
    :param clock: time for everything the engine waits for.
    :param rng: source of all jitter.
    :param observer: hears of every event.
    :param limiter: the account's limits; by default none, but a refusal for the rate pauses every row of this run.
    :param gates: consulted before each attempt on any route, in this order, after the route's own.
    :param budget: of the whole run; calls for the fallback routes when it is nearly used up.
    """

    def __init__(
        self,
        client: ModelClient | Sequence[Route],
        judge: Judge,
        *,
        config: EngineConfig | None = None,
        price: Callable[[str | None, Usage], float | None] | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        observer: Observer | None = None,
        limiter: Limiter | None = None,
        gates: Sequence[Gate] = (),
        budget: BudgetGate | None = None,
    ) -> None:
        self._config = config = config or EngineConfig()
        self._clock = clock = clock or SystemClock()
        rng = rng or random.Random()  # noqa: S311 -- jitter, not a secret
        self._observer = observer
        routes = (
            client if isinstance(client, Sequence) else (Route(client=client, limiter=limiter, price=price),)
        )
        self._priced = all(route.price is not None for route in routes)
        self._tally = Tally(priced=self._priced)
        self._referee = Referee(
            judge,
            RetryPolicy(config.retry, rng),
            rejections=RejectionStreak(config.max_same_rejections),
            on_bug=self._on_bug,
        )
        emit = None if observer is None else self._emit
        told: Sequence[Counter] = gates if budget is None else (*gates, budget)
        lanes = [open_lane(route, told, config=config, clock=clock, rng=rng, emit=emit) for route in routes]
        self._admission = Admission(
            Routing(lanes, prefer_fallback=None if budget is None else (lambda: budget.fallback)),
            gates,
            budget=budget,
            clock=clock,
            max_wait=config.max_limit_wait,
            emit=self._emit,
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
        self._put_off: deque[RowInProgress] = deque()
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
            await self._crew.run(total)
        finally:
            for row in self._put_off:
                self._end(row, row.settled)
            self._on_outcome = None
            self._ended = self._clock.monotonic()
            await self._feed.aclose()
        return self.report

    def stop(self, reason: str, *, grace: float | None = None) -> None:
        """End the run early: :meth:`run` returns a report that says so.

        Callable from any thread and from a signal handler, before and during the run. Waits end at once.

        :param grace: seconds that requests in flight get to come back, or none from a second call on; ``None``: the
            ``stop_grace`` of the configuration.
        """
        self._crew.stop(reason, grace=grace)

    @property
    def report(self) -> EngineReport:
        """How the run went, or goes so far: also there after :meth:`run` has raised."""
        now = self._clock.monotonic() if self._ended is None else self._ended
        tally = self._tally
        tally.waited_seconds = self._admission.waited_seconds
        complete = tally.ended == tally.pulled and (self._feed.exhausted or tally.pulled == tally.total)
        return tally.report(
            seconds=0.0 if self._started is None else now - self._started,
            interrupted=self._crew.stopped and not complete,
            stop_reason=None if complete else self._crew.halt_reason,
        )

    async def _work(self) -> None:
        """Do one worker's job."""
        if self._crew.probing and await self._admission.is_trusted():
            self._crew.probe_over()
        while not self._crew.halting:
            row = await self._next_row()
            if row is None:
                return
            await self._see_to(row)

    async def _next_row(self) -> RowInProgress | None:
        """Return a row to be answered: a new one, else one that was put off; ``None``: there are no more."""
        request = await self._feed.next()
        if request is None:
            return self._put_off.popleft() if self._put_off else None
        self._tally.pulled += 1
        return RowInProgress(request, priced=self._priced)

    async def _see_to(self, row: RowInProgress) -> None:
        """Bring one row to its end, unless it is put off; when the run ends first, what was paid for is kept."""
        try:
            await self._answer(row)
        finally:
            if row.best is not None and row not in self._put_off:
                self._end(row, row.settled)

    def _end(self, row: RowInProgress, outcome: Outcome | None) -> None:
        row.best = None
        if outcome is not None:
            self._hand_over(outcome)

    async def _answer(self, row: RowInProgress) -> None:
        """Bring one row to its end, unless it is put off or the run ends first."""
        request = row.request
        while True:
            try:
                admitted = await self._admission.admit(request)
            except CostExceedsLimitError as error:
                self._end(row, row.too_large(error))
                return
            if self._crew.halting:
                await self._admission.withdraw(admitted)
                return
            wait = await self._attempt(row, admitted)
            if wait is None or self._crew.halting:
                return
            if wait > 0:
                self._emit(Waiting(index=request.index, reason=WaitReason.BACKOFF, seconds=wait))
                await self._clock.sleep(wait)

    async def _attempt(self, row: RowInProgress, admitted: Admitted) -> float | None:
        """Send one request and act on its result; return the wait before the next, ``None`` when there is none."""
        worker = asyncio.current_task()
        assert worker is not None  # noqa: S101 -- workers are tasks
        self._crew.engage(worker)
        lane = admitted.lane
        try:
            row.attempts += 1
            row.account = lane.route.name
            self._tally.sent(attempt=row.attempts)
            exchange = await lane.exchanger.send(admitted.request, row.attempts)
            # Handed over before anything else is awaited: from here on a cancellation loses nothing.
            wait = self._take_in(row, exchange, lane)
            await self._settle(exchange, admitted)
            return self._admission.wait_after(exchange, wait)
        finally:
            self._crew.disengage(worker)
            self._crew.probe_over()

    def _take_in(self, row: RowInProgress, exchange: Exchange, lane: Lane) -> float | None:
        cost_usd = self._referee.price(exchange, lane.route.price)
        self._tally.came_back(exchange.result, cost_usd)
        try:
            lane.exchanger.announce(exchange, cost_usd)
        except Exception as error:  # noqa: BLE001 -- a gate's failure ends the run, but not before the answer is kept
            self._crew.halt(error)
        new_rows = not self._feed.exhausted and self._tally.pulled != self._tally.total
        ruling = self._referee.rule(row, exchange, cost_usd, broken=lane.broken, more=new_rows)
        if ruling.put_off:
            self._put_off.append(row)
        if ruling.outcome is not None:
            self._end(row, ruling.outcome)
        if ruling.stop is None:
            return ruling.wait
        stop = self._admission.after_refusal(exchange, lane, ruling.stop)
        if stop is None:
            return 0.0
        self._crew.halt(stop)
        return ruling.wait

    async def _settle(self, exchange: Exchange, admitted: Admitted) -> None:
        try:
            await self._admission.settle(exchange, admitted)
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
            self._emit(RowDone.of(outcome))

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
