"""Put the finished shards together into one output."""

from __future__ import annotations

import datetime as dt
import logging
from typing import TYPE_CHECKING

from airflow_llm_provider.dataset.files.layout import Layout
from airflow_llm_provider.dataset.files.urls import Resolver, public_uri, resolve
from airflow_llm_provider.dataset.merging.cleaning import clean
from airflow_llm_provider.dataset.merging.merge import merge_shards
from airflow_llm_provider.dataset.plans.plan import read_plan
from airflow_llm_provider.engine.clock import Clock, SystemClock
from airflow_llm_provider.engine.usage import Usage
from airflow_llm_provider.errors import LLMInputError, LLMStateError
from airflow_llm_provider.jobs.amounts import counted, dollars
from airflow_llm_provider.jobs.claim import Claimant
from airflow_llm_provider.jobs.options import KEEP_DAYS, check_keep_days, check_threshold
from airflow_llm_provider.jobs.threshold import check_run
from airflow_llm_provider.xcom import RunSummary, ShardState

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from airflow_llm_provider.dataset.plans.plan import Plan

_log = logging.getLogger(__name__)
#: URIs of files that cross XCom; the manifest has all.
_MOST_FILES = 100
_DAY = 86_400


def merge(
    plan: str,
    *,
    states: Iterable[object] = (),
    destination: str | None = None,
    failure_threshold: float | None = None,
    keep_days: int | None = KEEP_DAYS,
    resolver: Resolver = resolve,
    claimant: Claimant | None = None,
    clock: Clock | None = None,
    log: logging.Logger | None = None,
) -> RunSummary:
    """Write the output of a plan whose shards are all finished.

    The plan decides what belongs to the output; the states only tell what this run spent.

    :param plan: URI of the plan, or its name relative to ``destination``.
    :param states: shard states of this run, as they came through XCom; those of other plans and ``None`` are ignored.
    :param failure_threshold: largest share of rows, from 0 to 1, that may lack an answer; the output is written
        either way. Blank rows do not count. ``None``: any share.
    :param keep_days: days after which plans, shards and answers that no run has used are deleted, once the output is in
        place, unless a ``limit`` made the run a trial; ``None``: never.
    :param claimant: who merges, for whoever finds the output in use; ``None``: this process.
    :raises LLMBusyError: another merge is replacing the output; nothing was written.
    :raises LLMStateError: shards are missing or storage cannot be read; the previous output is untouched.
    :raises LLMFailureThresholdError: after the output was written.
    """
    check_threshold(failure_threshold)
    check_keep_days(keep_days)
    log = log or _log
    clock = clock or SystemClock()
    began = clock.monotonic()
    layout, plan_id = Layout.of_plan(plan, destination=destination, resolver=resolver)
    frozen = read_plan(layout, plan_id)
    known = _states_of(frozen.plan_id, layout, states)
    created = dt.datetime.fromtimestamp(clock.time(), tz=dt.UTC).isoformat()
    with (claimant or Claimant()).on_output(layout):
        report = merge_shards(layout, frozen, created=created)
        # After a trial the whole run is to come, and it wants the answers that the trial left alone.
        if keep_days is not None and not _is_trial(frozen):
            _clean(layout, frozen, now=clock.time(), keep_days=keep_days, log=log)
    costs = [state.cost_usd for state in known]
    summary = RunSummary(
        plan_id=frozen.plan_id,
        destination=layout.storage.root,
        manifest=report.manifest,
        rows=report.rows,
        rows_by_status=dict(report.rows_by_status),
        shards=len(frozen.shards),
        reused=sum(state.reused for state in known),
        requests=sum(state.requests for state in known),
        retries=sum(state.retries for state in known),
        usage=sum((state.usage for state in known), Usage()),
        cost_usd=None if None in costs else float(sum(cost for cost in costs if cost is not None)),
        output_usage=report.usage,
        output_cost_usd=report.cost_usd,
        seconds=round(sum(state.seconds for state in known) + clock.monotonic() - began, 3),
        files=report.files[:_MOST_FILES],
        rejects=report.rejects,
    )
    log.info("%s", describe(summary))
    check_run(summary, failure_threshold)
    return summary


def _clean(layout: Layout, plan: Plan, *, now: float, keep_days: int, log: logging.Logger) -> None:
    """Delete what nobody needs any more. The output is in place: what fails here is no reason to fail the run."""
    try:
        cleaned = clean(layout, plan, before=now - keep_days * _DAY)
    except LLMStateError as error:
        log.warning(
            "What is older than keep_days could not be deleted, and is tried again next time: %s", error
        )
        return
    if cleaned.size:
        log.info(
            "Deleted what no run has used for %s: %s, input rows in %s and answers in %s, %s MB",
            counted(keep_days, "day"),
            counted(cleaned.plans, "plan"),
            counted(cleaned.shards, "file"),
            counted(cleaned.answers, "file"),
            f"{cleaned.size / 1e6:,.1f}",
        )


def _is_trial(plan: Plan) -> bool:
    """Say whether a ``limit`` left rows of the source alone, or may have."""
    return plan.selection.get("limit") is not None


def describe(summary: RunSummary) -> str:
    """Say in one line how a run went."""
    cost = "cost unknown" if summary.cost_usd is None else dollars(summary.cost_usd)
    statuses = ", ".join(f"{count:,} {status}" for status, count in summary.rows_by_status.items())
    return (
        f"{counted(summary.rows, 'row')} ({statuses or 'none'}) from {counted(summary.shards, 'shard')}. In the last try "
        f"of each: {counted(summary.requests, 'request')}, {summary.retries:,} retries, "
        f"{counted(summary.reused, 'answer')} reused, {summary.usage.prompt_tokens:,} tokens in, "
        f"{summary.usage.completion_tokens:,} tokens out, {cost}. Output: {public_uri(summary.destination)}"
        + (f"; rows without an answer: {public_uri(summary.rejects)}" if summary.rejects else "")
    )


def _states_of(plan_id: str, layout: Layout, states: Iterable[object]) -> Sequence[ShardState]:
    """Keep the states that belong to the plan, one per shard."""
    known: dict[str, ShardState] = {}
    for value in states:
        if value is None:
            continue
        state = ShardState.from_json(value)
        try:
            _, of_plan = Layout.of_plan(state.shard.plan, destination=layout.storage.root)
        except LLMInputError:
            continue
        if of_plan == plan_id:
            known[state.shard.shard_id] = state
    return list(known.values())
