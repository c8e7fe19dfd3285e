"""Asset events of an output."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import Asset, AssetAlias

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context

    from airflow_llm_provider.xcom import RunSummary


def emit_events(task: BaseOperator, context: Context, summary: RunSummary) -> None:
    """Give every asset among the task's outlets an event whose extra is the run's summary."""
    events, extra = context["outlet_events"], summary.to_json()
    for outlet in task.outlets:
        if isinstance(outlet, Asset):
            events[outlet].extra = extra
        elif isinstance(outlet, AssetAlias):
            events[outlet].add(Asset(uri=summary.destination), extra=extra)
