"""Rows of a shard that make the same request: asked once, answered alike."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from airflow_llm_provider.dataset.outcomes.record import is_answered
from airflow_llm_provider.engine.usage import Usage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_llm_provider.dataset.plans.shards import ShardKeys
    from airflow_llm_provider.engine.call import Outcome
    from airflow_llm_provider.spec import CompletionSpec

_NOTHING = Usage()


def wants_one_answer(spec: CompletionSpec, choice: bool | None) -> bool:  # noqa: FBT001 -- an option, passed on
    """Tell whether identical requests are asked once: when told so, or when the answers would be the same anyway."""
    return spec.temperature == 0 if choice is None else choice


def copy_of(outcome: Outcome, index: int) -> Outcome:
    """Return how a row ends that took another's answer: nothing was sent for it, and nothing was spent on it."""
    return dataclasses.replace(
        outcome, index=index, usage=_NOTHING, cost_usd=0.0, attempts=0, latency_ms=None
    )


def answer_alike(outcomes: Sequence[Outcome | None], keys: ShardKeys) -> list[Outcome | None]:
    """Give the rows without an outcome the answer that the same request has in another row, if there is one."""
    known: dict[bytes, Outcome] = {}
    for fingerprint, outcome in zip(keys.fingerprints, outcomes, strict=True):
        if fingerprint is not None and outcome is not None and is_answered(outcome):
            known.setdefault(fingerprint, outcome)
    filled: list[Outcome | None] = []
    for index, (fingerprint, outcome) in enumerate(zip(keys.fingerprints, outcomes, strict=True)):
        twin = None if outcome is not None or fingerprint is None else known.get(fingerprint)
        filled.append(outcome if twin is None else copy_of(twin, index))
    return filled


def followers(outcomes: Sequence[Outcome | None], keys: ShardKeys) -> dict[int, list[int]]:
    """Return, by the first row of each request that is to be asked, the further rows with the same request."""
    asked = [key for key, outcome in zip(keys.fingerprints, outcomes, strict=True) if outcome is None]
    if len(set(asked)) == len(asked):
        return {}
    first: dict[bytes, int] = {}
    found: dict[int, list[int]] = {}
    for index, (fingerprint, outcome) in enumerate(zip(keys.fingerprints, outcomes, strict=True)):
        if outcome is not None or fingerprint is None:
            continue
        leader = first.setdefault(fingerprint, index)
        if leader != index:
            found.setdefault(leader, []).append(index)
    return found
