"""Whether a shard still holds the rows that it is named by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_llm_provider.dataset.plans.checksum import repeated, shard_salt
from airflow_llm_provider.errors import LLMStateError

if TYPE_CHECKING:
    from airflow_llm_provider.dataset.plans.plan import Plan
    from airflow_llm_provider.dataset.plans.shard_entry import ShardEntry
    from airflow_llm_provider.dataset.plans.shards import ShardFile


def check_content(shard: ShardFile, plan: Plan, entry: ShardEntry) -> None:
    """Make sure that a shard of a file of its own holds the rows that it is named by.

    :raises LLMStateError: when it does not, naming the remedy.
    """
    if entry.file is not None:
        # Several shards of one file may have become one, whose name is a hash of theirs.
        return
    name = shard.content_hash(shard_salt(plan.spec, plan.input_schema))
    repeats = (repeated(name, count) for count in range(1, len(plan.shards)))
    if name != entry.shard_id and entry.shard_id not in repeats:
        raise LLMStateError(
            f"{shard.uri} does not hold the rows that the split wrote: somebody has changed it, or the storage has. Clear "
            "the split and everything after it, which writes it anew; answers that are already there are kept"
        )
