"""All shards of a plan in one process, one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_llm_provider.dataset.arrow.allocator import give_back
from airflow_llm_provider.dataset.files.urls import Resolver, resolve
from airflow_llm_provider.jobs.blocking import loop_factory_for, run_blocking
from airflow_llm_provider.jobs.completing.accounts import Account, OpenAccounts
from airflow_llm_provider.jobs.completing.shard_run import ShardRun

if TYPE_CHECKING:
    import logging
    import random
    from collections.abc import Sequence

    from airflow_llm_provider.engine.clock import Clock
    from airflow_llm_provider.engine.events import Observer
    from airflow_llm_provider.jobs.claim import Claimant
    from airflow_llm_provider.jobs.options import CompleteOptions
    from airflow_llm_provider.xcom import ShardReference, ShardState


class ShardSeries:
    """One try at every shard of a plan, with one client and one limiter, so that connections are opened once.

    The first shard that fails ends the try; those before it are finished, and what it was answered is kept.

    :param references: the shards, as the split returned them.
    :param accounts: what to send on.
    :param options: how requests are sent.
    :param destination: the destination that the split was given.
    :param claimant: who asks, for whoever finds a shard in use; ``None``: this process.
    :param observer: hears of every event of the engine, besides the log.
    """

    def __init__(
        self,
        references: Sequence[ShardReference],
        *,
        accounts: Sequence[Account],
        options: CompleteOptions,
        destination: str | None = None,
        resolver: Resolver = resolve,
        claimant: Claimant | None = None,
        observer: Observer | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        log: logging.Logger | None = None,
    ) -> None:
        self._references = references
        self._accounts = accounts
        self._options = options
        self._destination = destination
        self._resolver = resolver
        self._claimant = claimant
        self._observer = observer
        self._clock = clock
        self._rng = rng
        self._log = log
        self._current: ShardRun | None = None
        self._stop_reason: str | None = None

    @property
    def state(self) -> ShardState | None:
        """How the shard goes, or went, that was begun last; ``None``: none was."""
        return None if self._current is None else self._current.state

    def run(self) -> list[ShardState]:
        """Ask for every shard, and return how each went; raises as :meth:`ShardRun.ask` does."""
        if not self._references:
            return []
        return run_blocking(self.ask(), loop_factory=loop_factory_for(self._clock))

    async def ask(self) -> list[ShardState]:
        """Ask on the running loop."""
        states: list[ShardState] = []
        accounts = OpenAccounts(
            self._accounts,
            concurrency=self._options.concurrency,
            limiter_url=self._options.limiter_url,
            clock=self._clock,
        )
        try:
            for reference in self._references:
                # What the step before had is not to be added to what this one takes, as it never is between tasks.
                give_back()
                states.append(await self._begin(reference, accounts).ask())
            return states
        finally:
            give_back()
            await accounts.aclose()

    def stop(self, reason: str, *, grace: float | None = None) -> None:
        """End the try soon, as :meth:`ShardRun.stop` does."""
        self._stop_reason = reason
        if self._current is not None:
            self._current.stop(reason, grace=grace)

    def _begin(self, reference: ShardReference, accounts: OpenAccounts) -> ShardRun:
        self._current = run = ShardRun(
            reference,
            accounts=accounts,
            options=self._options,
            destination=self._destination,
            resolver=self._resolver,
            # What the first shard has found out about the key holds for the others.
            probe=reference.index == 0,
            claimant=self._claimant,
            observer=self._observer,
            clock=self._clock,
            rng=self._rng,
            log=self._log,
        )
        if self._stop_reason is not None:
            run.stop(self._stop_reason)
        return run
