"""What to say about a task in a callback, such as ``on_failure_callback``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_llm_provider.errors import LLMError
from airflow_llm_provider.xcom import SHARD_STATE_KEY, SUMMARY_KEY, RunSummary, ShardState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import Context


def task_summary(context: Context) -> str:
    """Say in a few lines how a task of this package went: rows by status, requests, cost, errors and why it failed.

    For callbacks, whose ``context`` it takes. It holds no row text and no secret, so it may go to a channel or a mail. It never
    raises: a callback that fails helps nobody.

    :param context: as Airflow gives it to the callback.
    """
    ti: Any = context["ti"]
    mapped = ti.map_index is not None and ti.map_index >= 0
    lines = [
        f"{ti.dag_id} · {ti.task_id}{f'[{ti.map_index}]' if mapped else ''} · {ti.run_id} · try {ti.try_number}"
    ]
    try:
        lines += _numbers(ti)
    except Exception as error:  # noqa: BLE001 -- where a task died with its worker, XComs cannot always be read
        lines.append(f"its numbers cannot be read ({type(error).__name__})")
    reason = context.get("exception")
    if isinstance(reason, BaseException):
        lines.append(_words(reason))
    return "\n".join(dict.fromkeys(lines))


def _numbers(ti: Any) -> list[str]:
    own = {"task_ids": ti.task_id, "map_indexes": ti.map_index}
    summary = ti.xcom_pull(key=SUMMARY_KEY, **own)
    if summary is not None:
        return _of_run(RunSummary.from_json(summary))
    state = ti.xcom_pull(key=SHARD_STATE_KEY, **own)
    if state is not None:
        return _of_shard(ShardState.from_json(state))
    return ["nothing was sent yet"]


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
