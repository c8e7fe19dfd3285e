"""The part of a shard's try in the budget of its run."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING

from airflow_llm_provider.dataset.outcomes.spent import spent_on
from airflow_llm_provider.dataset.plans.shards import open_shard
from airflow_llm_provider.engine.budget.book import Holder
from airflow_llm_provider.engine.budget.spent import Spent
from airflow_llm_provider.engine.usage import Usage
from airflow_llm_provider.errors import LLMError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from airflow_llm_provider.dataset.outcomes.journal import JournalWriter
    from airflow_llm_provider.dataset.outcomes.record import Record
    from airflow_llm_provider.dataset.plans.shard_entry import ShardEntry
    from airflow_llm_provider.engine.budget.gate import BudgetGate
    from airflow_llm_provider.engine.events import Observer
    from airflow_llm_provider.jobs.claim import ClaimedShard
    from airflow_llm_provider.jobs.completing.engine_setup import EngineSetup


class ShardBudget:
    """What one try of a shard may spend.

    :param shard_id: in whose name is reserved. The lease sees to it that nobody else speaks for it.
    :param journal: of the try. Its name is that of the try in the account book, so that the next one can tell what was
        spent by one that was killed.
    """

    def __init__(
        self,
        setup: EngineSetup,
        claimed: ClaimedShard,
        shard_id: str,
        *,
        journal: JournalWriter,
        observer: Observer,
    ) -> None:
        self._setup = setup
        self._claimed = claimed
        self._journal = journal
        self._holder = Holder(name=shard_id, session=journal.name)
        self._observer = observer

    def open(self) -> AbstractAsyncContextManager[BudgetGate | None]:
        """Open what keeps the run within its budget; ``None``: it has none."""
        layout, plan = self._claimed.layout, self._claimed.plan
        return self._setup.budget(
            # The plan's place, since several destinations may be asked for the same rows; its time, for starting over.
            f"{layout.uri(layout.plan(plan.plan_id))} {plan.created}",
            holder=self._holder,
            known=self._known,
            paid=self._claimed.known.journal.spent(unsaid=self._unsaid(plan.entry(self._holder.name))),
            shared=len(plan.shards) > 1,
            observer=self._observer,
        )

    def _known(self) -> Spent:
        # What came in a moment ago counts too.
        self._journal.flush()
        return spent_on(self._claimed.layout, self._claimed.plan, unsaid=self._unsaid)

    async def settle(self) -> None:
        """Tell for a try that died after its last answer what it has spent, and let go of the rest: nobody else would."""
        # With every answer there, a book that is away or damaged is no reason to fail.
        with suppress(LLMError):
            async with self.open():
                pass

    def _unsaid(self, entry: ShardEntry) -> Callable[[Record], Spent]:
        """Say what an answer counts of which nobody said what it took: its own prompt, and the longest answer."""
        spec = self._claimed.plan.spec

        @cache
        def prompts() -> dict[bytes | None, int]:
            # Read only where an answer asks for it: most endpoints say what each took.
            with open_shard(self._claimed.layout, entry) as shard:
                return dict(zip(shard.keys.fingerprints, shard.keys.tokens, strict=True))

        def most(record: Record) -> Spent:
            usage = Usage(
                prompt_tokens=prompts()[record.fingerprint], completion_tokens=spec.max_output_tokens
            )
            return Spent(tokens=usage.total_tokens, cost_usd=self._setup.dearest(spec.model, usage) or 0.0)

        return most
