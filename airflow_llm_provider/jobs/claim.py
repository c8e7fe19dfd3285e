"""Who claims a destination, an output or a shard, and what a try has in its hands that has claimed a shard."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_llm_provider.dataset.leases.lease import Lease
from airflow_llm_provider.dataset.leases.lease_record import Owner, Work
from airflow_llm_provider.dataset.outcomes.reuse import known_answers
from airflow_llm_provider.dataset.plans.content_check import check_content
from airflow_llm_provider.dataset.plans.shards import open_shard

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_llm_provider.dataset.files.layout import Layout
    from airflow_llm_provider.dataset.leases.lease_terms import LeaseTerms
    from airflow_llm_provider.dataset.outcomes.reuse import KnownAnswers
    from airflow_llm_provider.dataset.plans.plan import Plan
    from airflow_llm_provider.dataset.plans.shards import ShardFile
    from airflow_llm_provider.xcom import ShardReference


@dataclass(frozen=True, kw_only=True)
class Claimant:
    """Who works on a destination, and for how long it is theirs.

    :param owner: in whose name, for whoever finds it in use; ``None``: this process.
    :param leave: whether the destination stays theirs for a minute after the split, until the shards are taken up.
    :param terms: how long leases last.
    """

    owner: Owner | None = None
    leave: bool = False
    terms: LeaseTerms | None = None

    def on_destination(self, layout: Layout, *, start_over: bool = False) -> Lease:
        """Return the lease that a split needs."""
        work = Work.START_OVER if start_over else Work.SPLIT
        return self._lease(layout, work, "the destination")

    def on_output(self, layout: Layout) -> Lease:
        """Return the lease that a merge needs."""
        return self._lease(layout, Work.MERGE, "the output of")

    def on_shard(self, layout: Layout, plan: Plan, reference: ShardReference) -> Lease:
        """Return the lease that asking a shard needs."""
        what = f"shard {reference.index} of"
        return self._lease(layout, Work.COMPLETE, what, plan=plan.plan_id, shard=reference.shard_id)

    def _lease(self, layout: Layout, work: Work, what: str, *, plan: str = "", shard: str = "") -> Lease:
        owner = self.owner or Owner.of_process()
        return Lease(layout, work, owner, what=what, plan=plan, shard=shard, terms=self.terms)


@dataclass(frozen=True, kw_only=True)
class ClaimedShard:
    """A shard that nobody else works on.

    :param known: answers that need not be paid for, as they were after everybody else had let go of the shard.
    """

    layout: Layout
    plan: Plan
    lease: Lease
    shard: ShardFile
    known: KnownAnswers


@contextmanager
def claim_shard(
    layout: Layout, plan: Plan, reference: ShardReference, claimant: Claimant
) -> Iterator[ClaimedShard]:
    """Take the lease on a shard, and open it.

    :raises LLMBusyError: when somebody else works on it.
    :raises LLMStateError: when the storage cannot be read or written.
    """
    entry = plan.entry(reference.shard_id)
    with claimant.on_shard(layout, plan, reference) as lease, open_shard(layout, entry) as shard:
        check_content(shard, plan, entry)
        # Not before the lease is held: whoever held it before may just have got an answer.
        known = known_answers(layout, entry, shard.keys)
        yield ClaimedShard(layout=layout, plan=plan, lease=lease, shard=shard, known=known)
