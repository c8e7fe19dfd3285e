"""What the stored answers of a plan have cost."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from airflow_llm_provider.dataset.files.layout import JOURNALS, RESULTS
from airflow_llm_provider.dataset.files.storage import BrokenFileError
from airflow_llm_provider.dataset.outcomes.journal import read_journal
from airflow_llm_provider.dataset.outcomes.record import cost_of
from airflow_llm_provider.dataset.outcomes.results import read_results_file, records_of
from airflow_llm_provider.engine.budget.spent import Spent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow_llm_provider.dataset.files.layout import Layout
    from airflow_llm_provider.dataset.outcomes.record import Record
    from airflow_llm_provider.dataset.plans.plan import Plan
    from airflow_llm_provider.dataset.plans.shard_entry import ShardEntry


def spent_on(
    layout: Layout, plan: Plan, *, unsaid: Callable[[ShardEntry], Callable[[Record], Spent]]
) -> Spent:
    """Add up what the answers of a plan's shards have cost, finished or not; unknown prices count as nothing.

    :param unsaid: for a shard, what an answer counts of which the endpoint did not say what it took.
    :raises LLMStateError: when the storage cannot be read: unknown is not "nothing spent".
    """
    finished = set(layout.storage.files(RESULTS))
    begun = {name.rsplit("/", 1)[-1] for name in layout.storage.folders(JOURNALS)}
    spent = Spent()
    for entry in plan.shards:
        shard_id = entry.shard_id
        spent += cost_of(
            _records(
                layout,
                shard_id,
                finished=layout.results(shard_id) in finished,
                begun=shard_id in begun,
            ),
            unsaid=unsaid(entry),
        )
    return spent


def _records(layout: Layout, shard_id: str, *, finished: bool, begun: bool) -> Iterator[Record]:
    seen = set()
    if finished:
        # A damaged file is mended by the shard's next try, which pays again.
        with contextlib.suppress(BrokenFileError):
            table = read_results_file(layout, shard_id)
            for record in records_of(table) if table is not None else ():
                seen.add(record.key)
                yield record
    if begun:
        for record in read_journal(layout, shard_id).records:
            if record.key not in seen:
                yield record
