"""Ask the model for every row of one shard that has no answer yet."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from contextlib import suppress
from typing import TYPE_CHECKING

from airflow_llm_provider.dataset.files.layout import Layout
from airflow_llm_provider.dataset.files.urls import Resolver, resolve
from airflow_llm_provider.dataset.outcomes.journal import JournalWriter, remove_journal
from airflow_llm_provider.dataset.outcomes.results import ShardResults
from airflow_llm_provider.dataset.plans.plan import read_plan
from airflow_llm_provider.engine.clock import Clock, SystemClock
from airflow_llm_provider.engine.events import Observers
from airflow_llm_provider.errors import LLMError
from airflow_llm_provider.jobs.blocking import loop_factory_for, run_blocking
from airflow_llm_provider.jobs.claim import Claimant, ClaimedShard, claim_shard
from airflow_llm_provider.jobs.completing.accounts import Account, OpenAccounts
from airflow_llm_provider.jobs.completing.column_judge import ColumnJudge
from airflow_llm_provider.jobs.completing.duplicates import followers, wants_one_answer
from airflow_llm_provider.jobs.completing.engine_setup import EngineSetup
from airflow_llm_provider.jobs.completing.keeper import Keeper
from airflow_llm_provider.jobs.completing.lease_gate import LeaseGate
from airflow_llm_provider.jobs.completing.progress import ProgressLog
from airflow_llm_provider.jobs.completing.questions import Questions
from airflow_llm_provider.jobs.completing.settled import SettledRows, settle
from airflow_llm_provider.jobs.completing.shard_budget import ShardBudget
from airflow_llm_provider.jobs.completing.shard_state import shard_state
from airflow_llm_provider.jobs.options import CompleteOptions
from airflow_llm_provider.jobs.threshold import all_ended, check_shard

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_llm_provider.dataset.plans.plan import Plan
    from airflow_llm_provider.engine.call import Judge, ModelClient
    from airflow_llm_provider.engine.events import Observer
    from airflow_llm_provider.engine.limiter import Limiter
    from airflow_llm_provider.engine.runner import Engine
    from airflow_llm_provider.prices import Pricer
    from airflow_llm_provider.xcom import ShardReference, ShardState

_log = logging.getLogger(__name__)


class ShardRun:
    """One try at one shard.

    Every answer is in the journal before the next row is taken note of, so whatever ends the try, the next one asks
    only the rest. :attr:`state` is valid at any time, also after an exception.

    :param reference: the shard, as the split returned it.
    :param accounts: what to send on. Clients and limiters that a sequence of accounts makes are closed in the end;
        what is open already stays open.
    :param client: sends requests, in place of accounts; its owner closes it, or :meth:`run` does.
    :param options: how requests are sent.
    :param destination: the destination the split was given; needed only when its URI is too long for XCom.
    :param resolver: from a URL to a filesystem.
    :param pricer: prices of the requests of ``client``.
    :param limiter: limits of ``client``; ``None``: only pauses that the endpoint asks for.
    :param probe: whether the first request goes out alone, so that a wrong key costs one request.
    :param observer: hears of every event of the engine, besides the log.
    :param claimant: who asks, for whoever finds the shard in use; ``None``: this process.
    """

    def __init__(
        self,
        reference: ShardReference,
        *,
        accounts: Sequence[Account] | OpenAccounts = (),
        client: ModelClient | None = None,
        options: CompleteOptions | None = None,
        destination: str | None = None,
        resolver: Resolver = resolve,
        pricer: Pricer | None = None,
        limiter: Limiter | None = None,
        probe: bool = True,
        claimant: Claimant | None = None,
        observer: Observer | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        log: logging.Logger | None = None,
    ) -> None:
        self._reference = reference
        self._client = client
        self._options = options or CompleteOptions()
        self._destination = destination
        self._resolver = resolver
        self._probe = probe
        self._claimant = claimant or Claimant()
        self._observer = observer
        self._clock = clock or SystemClock()
        self._rng = rng or random.Random()  # noqa: S311 -- jitter, not a secret
        self._log = log or _log
        self._owned: OpenAccounts | None = None
        self._accounts = self._open(accounts, limiter, pricer)
        self._keeper: Keeper | None = None
        self._engine: Engine | None = None
        self._stop_reason: str | None = None
        self._settled: SettledRows | None = None
        self._files: tuple[str, ...] = ()
        self._status = "failed"
        self._message: str | None = None
        self._began = self._clock.monotonic()
        self._seconds: float | None = None

    def run(self) -> ShardState:
        """Ask in a loop of its own, close the client, and return how it went; see :meth:`ask`."""

        async def ask_and_close() -> ShardState:
            try:
                return await self.ask()
            finally:
                if self._client is not None:
                    await self._client.aclose()

        return run_blocking(ask_and_close(), loop_factory=loop_factory_for(self._clock))

    async def ask(self) -> ShardState:
        """Ask on the running loop, and return how it went. Files are read and written on the loop's thread.

        :raises LLMInputError: an option that cannot be kept; nothing was sent.
        :raises LLMBusyError: another process asks this shard, or another plan of the destination; nothing was sent.
        :raises LLMTerminalError: every further request would fail the same way, or the budget is used up.
        :raises LLMRetryableError: interrupted, or the endpoint is down; another try goes on where this one stopped.
        :raises LLMFailureThresholdError: too many rows have no answer.
        :raises LLMStateError: storage cannot be read or written.
        """
        self._began = self._clock.monotonic()
        try:
            await self._run()
            self._status = "success"
        except BaseException as error:
            # The text of an error that is not ours may quote a row, and this goes into XCom.
            self._message = str(error) if isinstance(error, LLMError) else type(error).__name__
            raise
        finally:
            self._seconds = self._clock.monotonic() - self._began
            if self._owned is not None:
                await self._owned.aclose()
        return self.state

    def stop(self, reason: str, *, grace: float | None = None) -> None:
        """End the try soon, keeping every answer; may be called from a signal handler or another thread.

        :param grace: seconds that requests in flight get to come back; ``None``: the engine's.
        """
        self._stop_reason = reason
        if self._engine is not None:
            self._engine.stop(reason, grace=grace)

    @property
    def state(self) -> ShardState:
        """How it goes, or went."""
        return shard_state(
            self._reference,
            status="interrupted" if self._status == "failed" and self._stop_reason else self._status,
            settled=self._settled,
            report=None if self._engine is None else self._engine.report,
            copies={} if self._keeper is None else self._keeper.copies,
            seconds=self._clock.monotonic() - self._began if self._seconds is None else self._seconds,
            files=self._files,
            message=self._message,
        )

    def _open(
        self, accounts: Sequence[Account] | OpenAccounts, limiter: Limiter | None, pricer: Pricer | None
    ) -> OpenAccounts:
        if isinstance(accounts, OpenAccounts):
            return accounts
        url = self._options.limiter_url
        if self._client is not None:
            return OpenAccounts.of_client(
                self._client, limiter=limiter, pricer=pricer, limiter_url=url, clock=self._clock
            )
        self._owned = OpenAccounts(
            accounts, concurrency=self._options.concurrency, limiter_url=url, clock=self._clock
        )
        return self._owned

    async def _run(self) -> None:
        layout, plan_id = Layout.of_plan(
            self._reference.plan, destination=self._destination, resolver=self._resolver
        )
        plan = read_plan(layout, plan_id)
        self._setup(plan).check()
        with claim_shard(layout, plan, self._reference, self._claimant) as claimed:
            for warning in claimed.known.warnings:
                self._log.warning("%s", warning)
            judge = ColumnJudge(plan.spec)
            answers = claimed.known.answers
            self._settled = settled = settle(claimed.shard.keys, answers, judge, alike=self._alike(plan))
            counts = (f"{settled.pending:,}", f"{settled.reused:,}")
            self._log.info("%s: %s rows to ask, %s answers reused", self._reference.label, *counts)
            await self._ask(claimed, settled, judge)

    async def _ask(self, claimed: ClaimedShard, settled: SettledRows, judge: Judge) -> None:
        """Send what is pending and put the finished shard in place."""
        layout, plan, shard_id = claimed.layout, claimed.plan, self._reference.shard_id
        outcomes, keys = list(settled.outcomes), claimed.shard.keys
        with (
            ShardResults(spec=plan.spec, keys=keys, outcomes=outcomes) as results,
            JournalWriter(layout, shard_id, monotonic=self._clock.monotonic) as journal,
        ):
            if settled.pending:
                alike = followers(outcomes, keys) if self._alike(plan) else {}
                progress = self._progress(settled)
                self._keeper = keeper = Keeper(
                    journal, keys, outcomes, alike, results=results, on_copies=progress.copied
                )
                questions = Questions(plan.spec, claimed.shard, outcomes, itertools.chain(*alike.values()))
                observer = progress if self._observer is None else Observers(progress, self._observer)
                async with self._budget(claimed, journal, observer).open() as budget:
                    engine = self._setup(plan).engine(
                        judge,
                        gates=(LeaseGate(claimed.lease),),
                        budget=budget,
                        observer=observer,
                        probe=self._probe,
                        watch_rejections=not settled.reused,
                    )
                    await self._converse(engine, questions, keeper, progress)
            elif claimed.known.journal.files:
                await self._budget(claimed, journal, self._progress(settled)).settle()
            finished = all_ended(outcomes, self._stop_reason)
            check_shard(finished, asked=settled.pending, threshold=self._options.failure_threshold)
            claimed.lease.check()
            self._files = (results.write(layout, shard_id),)
            # Only now: whatever fails before, the journal has every answer.
            journal.discard()
        remove_journal(layout, shard_id, (*claimed.known.journal.files, *journal.files))

    def _alike(self, plan: Plan) -> bool:
        return wants_one_answer(plan.spec, self._options.deduplicate)

    def _progress(self, settled: SettledRows) -> ProgressLog:
        return ProgressLog(
            self._reference.label,
            rows=self._reference.rows,
            settled=self._reference.rows - settled.pending,
            reused=settled.reused,
            clock=self._clock,
            log=self._log,
        )

    def _budget(self, claimed: ClaimedShard, journal: JournalWriter, observer: Observer) -> ShardBudget:
        setup = self._setup(claimed.plan)
        return ShardBudget(setup, claimed, self._reference.shard_id, journal=journal, observer=observer)

    def _setup(self, plan: Plan) -> EngineSetup:
        return EngineSetup(
            model=plan.spec.model,
            scope=plan.spec.fingerprint,
            accounts=self._accounts,
            options=self._options,
            clock=self._clock,
            rng=self._rng,
        )

    async def _converse(
        self,
        engine: Engine,
        questions: Questions,
        keeper: Keeper,
        progress: ProgressLog,
    ) -> None:
        self._engine = engine
        if self._stop_reason is not None:
            engine.stop(self._stop_reason)
        teller = asyncio.create_task(self._tell(engine, progress))
        try:
            await engine.run(questions, keeper.keep, total=questions.pending)
        finally:
            teller.cancel()
            with suppress(asyncio.CancelledError):
                await teller
            progress.tell()

    async def _tell(self, engine: Engine, progress: ProgressLog) -> None:
        while True:
            await self._clock.sleep(self._options.progress_interval)
            progress.tell(engine.report.waited_seconds)
