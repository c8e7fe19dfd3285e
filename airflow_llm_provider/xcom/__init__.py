"""What crosses XCom: small, plain JSON, versioned. Never a checkpoint, never row text.

``split`` returns :class:`ShardReference` dicts, ``complete`` returns a :class:`ShardState` dict (and pushes it under
:data:`SHARD_STATE_KEY` before raising), ``merge`` returns a :class:`RunSummary` dict.
"""

from airflow_llm_provider.xcom.group_reference import GroupReference
from airflow_llm_provider.xcom.keys import LISTING_KEY, PLAN_KEY, SHARD_STATE_KEY, SUMMARY_KEY
from airflow_llm_provider.xcom.run_summary import RunSummary
from airflow_llm_provider.xcom.shard_reference import MAX_REFERENCE_BYTES, ShardReference
from airflow_llm_provider.xcom.shard_state import ShardState

__all__ = [
    "LISTING_KEY",
    "MAX_REFERENCE_BYTES",
    "PLAN_KEY",
    "SHARD_STATE_KEY",
    "SUMMARY_KEY",
    "GroupReference",
    "RunSummary",
    "ShardReference",
    "ShardState",
]
