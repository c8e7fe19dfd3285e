"""What to say about a task or a run in a callback, such as ``on_failure_callback`` or that of a deadline."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_llm_provider.errors import LLMError
from airflow_llm_provider.xcom import SHARD_STATE_KEY, SUMMARY_KEY, RunSummary, ShardState

if TYPE_CHECKING:
    from airflow.sdk import Context


def task_summary(context: Context) -> str:
    """Say in a few lines how a task of this package went: rows by status, requests, cost, errors and why it failed.

    For callbacks, whose ``context`` it takes: of a task, of a DAG, and of a deadline, which knows of no task. It holds no row
    text and no secret, so it may go to a channel or a mail. It never raises: a callback that fails helps nobody.

    :param context: as Airflow gives it to the callback.
    """
    ti: Any = context.get("ti")
    lines = [_run_line(context) if ti is None else _task_line(ti), *_of_outcome(context)]
    if ti is not None:
        try:
            numbers = _numbers(ti)
        except Exception as error:  # noqa: BLE001 -- where a task died with its worker, XComs cannot always be read
            numbers = [f"its numbers cannot be read ({type(error).__name__})"]
        # Airflow gives the callback of a DAG one task of many: what that one has not sent, others may have.
        lines += numbers or ([] if "reason" in context else ["nothing was sent yet"])
    reason = context.get("exception")
    if isinstance(reason, BaseException):
        lines.append(_words(reason))
    return "\n".join(dict.fromkeys(lines))


def _task_line(ti: Any) -> str:
    mapped = ti.map_index is not None and ti.map_index >= 0
    return f"{ti.dag_id} · {ti.task_id}{f'[{ti.map_index}]' if mapped else ''} · {ti.run_id} · try {ti.try_number}"


def _run_line(context: Mapping[str, Any]) -> str:
    run = context.get("dag_run")
    if isinstance(run, Mapping):
        return f"{run.get('dag_id')} · {run.get('dag_run_id')}"
    return f"{getattr(context.get('dag'), 'dag_id', None)} · {context.get('run_id')}"


def _of_outcome(context: Mapping[str, Any]) -> list[str]:
    """Say what Airflow says of the run, in its own words, to the callback of a DAG or of a deadline."""
    reason, deadline, run = (context.get(name) for name in ("reason", "deadline", "dag_run"))
    told = [] if reason is None else [f"the run: {reason}"]
    if isinstance(deadline, Mapping):
        state = run.get("state") if isinstance(run, Mapping) else None
        told.append(f"late: the run was to end by {_moment(deadline.get('deadline_time'))}, and is {state}")
    return told


def _moment(value: Any) -> str:
    """Return a time to the second; Airflow gives it as text or not, as the callback runs here or there."""
    try:
        return (value if isinstance(value, datetime) else datetime.fromisoformat(value)).isoformat(
            timespec="seconds"
        )
    except (TypeError, ValueError):
        return str(value)


def _numbers(ti: Any) -> list[str]:
    own = {"task_ids": ti.task_id, "map_indexes": ti.map_index}
    summary = ti.xcom_pull(key=SUMMARY_KEY, **own)
    if summary is not None:
        return _of_run(RunSummary.from_json(summary))
    state = ti.xcom_pull(key=SHARD_STATE_KEY, **own)
    if state is not None:
        return _of_shard(ShardState.from_json(state))
    return []


def _of_run(summary: RunSummary) -> list[str]:
    told = f"{summary.rows:,} rows ({_counts(summary.rows_by_status)}), {_cost(summary.cost_usd)}, in {summary.destination}"
    return [told] if summary.rejects is None else [told, f"rows without an answer: {summary.rejects}"]


def _of_shard(state: ShardState) -> list[str]:
    told = (
        f"{state.shard.label}: {state.status}; {_counts(state.rows_by_status)}; {state.requests:,} requests, "
        f"{state.reused:,} answers reused, {_cost(state.cost_usd)}"
    )
    errors = [f"errors: {_counts(state.errors)}"] if state.errors else []
    return [told, *errors, *([state.message] if state.message else [])]


def _words(error: BaseException) -> str:
    """Return an error of ours in full, and of another, which may quote anything, only the kind."""
    cause = error.__cause__
    if isinstance(cause, LLMError):
        error = cause
    return str(error) if isinstance(error, LLMError) else type(error).__name__


def _cost(dollars: float | None) -> str:
    return "cost unknown" if dollars is None else f"${dollars:.4f}"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items()) or "none"
