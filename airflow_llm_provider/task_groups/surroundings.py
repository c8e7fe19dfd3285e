"""What a job's tasks take from the DAG and the groups around them, and from Airflow's configuration."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetAlias

from airflow_llm_provider.hooks.compat import DOUBLING_BACKOFF, airflow_option
from airflow_llm_provider.scheduling.priority import weight_rule
from airflow_llm_provider.scheduling.retry_policy import RETRY_POLICIES, LLMRetryPolicy

if TYPE_CHECKING:
    from airflow.sdk import TaskGroup

#: How each task is retried unless the DAG says otherwise: an endpoint or a storage that is down for minutes costs no one
#: their sleep.
_RETRIES: dict[str, Any] = {
    "retries": 2,
    "retry_delay": timedelta(minutes=1),
    "retry_exponential_backoff": DOUBLING_BACKOFF,
    "max_retry_delay": timedelta(minutes=10),
}


def asset_of(group: TaskGroup, *, asset: Asset | AssetAlias | str | bool) -> Asset | AssetAlias | None:
    """Return what the output is known by to other DAGs."""
    if isinstance(asset, (Asset, AssetAlias)):
        return asset
    if asset is False:
        return None
    # A name of our own, and not the destination: two names for one URI would make Airflow deactivate either asset.
    return Asset(f"{group.dag.dag_id}.{group.group_id}" if asset is True else asset)


def defaults_above(group: TaskGroup) -> dict[str, Any]:
    """Return the ``default_args`` in force within a group."""
    return {**group.dag.default_args, **group.default_args}


def default_retries(group: TaskGroup) -> dict[str, Any]:
    """Return what the DAG and its groups leave open."""
    return {name: value for name, value in _RETRIES.items() if name not in defaults_above(group)}


def retry_policy(group: TaskGroup) -> dict[str, Any]:
    """Return the policy by which a shard is retried when the endpoint said, where Airflow has such policies."""
    return (
        {"retry_policy": LLMRetryPolicy()}
        if RETRY_POLICIES and "retry_policy" not in defaults_above(group)
        else {}
    )


def weight_rule_of(group: TaskGroup) -> dict[str, Any]:
    """Return the rule by which shards of a backfill leave free slots to every other run."""
    return weight_rule(defaults_above(group))


def pool_of(group: TaskGroup, pool: str | None) -> str:
    """Return the pool of the shards: the one that is named, else that of the surroundings, else the option's."""
    named = pool or defaults_above(group).get("pool")
    return named or airflow_option("llm", "default_pool", fallback="default_pool")
