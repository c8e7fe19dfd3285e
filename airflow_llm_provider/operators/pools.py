"""Whether a pool can ever run the shards: found out by the split, before anything is counted.

A task cannot read pools, and Airflow lets one that its pool cannot hold wait for ever, with a line in the scheduler's log.
The API server can read them, and answers the split through :mod:`airflow_llm_provider.plugins.pools`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from http.client import HTTPException
from typing import TYPE_CHECKING, Any
from urllib.error import URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import ProxyHandler, build_opener

from airflow_llm_provider.errors import LLMInputError
from airflow_llm_provider.hooks.compat import airflow_option

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Iterable

__all__ = ["POOLS_PREFIX", "PoolSize", "check_pools", "pools_url"]

#: Where the API server answers.
POOLS_PREFIX = "/llm-pools"
_TIMEOUT = 5.0
_WITHOUT_BOUND = -1


@dataclass(frozen=True, kw_only=True)
class PoolSize:
    """A pool, as the API server knows it.

    :param slots: ``None``: there is no such pool; -1: it has no bound.
    """

    name: str
    slots: int | None

    def refuse(self, task_id: str, needed: int) -> None:
        """Refuse a task that needs more.

        :raises LLMInputError: naming pool, bound and remedy.
        """
        if self.slots is None:
            raise LLMInputError(
                f"pool {self.name!r} does not exist, so {task_id} would wait for ever: create it, such as by airflow pools "
                f'set {self.name} {needed} "requests in flight", or name another by pool='
            )
        if _WITHOUT_BOUND != self.slots < needed:
            raise LLMInputError(
                f"pool {self.name!r} has {self.slots} slots, and one shard of {task_id} takes {needed}, so it would wait "
                f"for ever: give the pool at least {needed} slots, or lower concurrency to {self.slots}"
            )


def check_pools(
    task: Any, ti_id: Any, log: logging.Logger, *, ask: Callable[[str, str], PoolSize] | None = None
) -> None:
    """Refuse to split for tasks that can never start.

    :param task: the split, whose downstream tasks are looked at.
    :param ti_id: id of its running task instance, without which the API server tells nothing.
    :param ask: returns a pool's size by name and task instance, in tests.
    :raises LLMInputError: when a pool is missing or smaller than what one shard takes.
    """
    if ti_id is None or not task.has_dag():
        return
    for downstream in _completing(task.get_flat_relatives(upstream=False)):
        try:
            size = (ask or _ask)(downstream.pool, str(ti_id))
        except (OSError, HTTPException, ValueError) as error:
            log.info(
                "Pool %s could not be looked at (%s): if it is missing or too small, %s waits for ever",
                downstream.pool,
                type(error).__name__,
                downstream.task_id,
            )
            return
        size.refuse(downstream.task_id, downstream.pool_slots)


def pools_url() -> str:
    """Return where the API server answers, from the options that tell a worker where it is."""
    api = airflow_option("core", "execution_api_server_url", fallback="")
    base = api or airflow_option("api", "base_url", fallback="/")
    if not urlsplit(base).scheme:
        base = f"http://localhost:8080{base}"
    return base.rstrip("/").removesuffix("/execution") + POOLS_PREFIX


def _completing(tasks: Iterable[Any]) -> list[Any]:
    from airflow_llm_provider.operators.complete import CompleteShardOperator  # noqa: PLC0415 -- the other way round too

    def completes(task: Any) -> bool:
        cls = getattr(task, "operator_class", type(task))
        return isinstance(cls, type) and issubclass(cls, CompleteShardOperator)

    return [task for task in tasks if completes(task)]


def _ask(pool: str, ti_id: str) -> PoolSize:
    # With the slash at the end: without it the server sends the question elsewhere first, not always by https.
    url = f"{pools_url()}/?{urlencode({'pool': pool, 'task_instance': ti_id})}"
    if not url.startswith(("http://", "https://")):
        raise URLError("not a web address")
    # By the environment's proxies, as the worker itself reaches the API server; no other opener's handlers.
    with build_opener(ProxyHandler()).open(url, timeout=_TIMEOUT) as response:
        found = json.load(response)
    slots = found.get("slots", "") if isinstance(found, dict) else ""
    if slots is not None and not isinstance(slots, int):
        raise ValueError("not the answer of this plugin")
    return PoolSize(name=pool, slots=slots)
