"""What each instance of a mapped task has of its own."""

from __future__ import annotations

from typing import Any

from airflow_llm_provider.operators.arguments import is_deferred

__all__ = ["same_for_all"]

#: Names in Airflow's templates that mean the same to every instance of a mapped task in a run.
_OF_THE_RUN = frozenset(
    {
        "conn",
        "conf",
        "dag",
        "dag_run",
        "data_interval_end",
        "data_interval_start",
        "ds",
        "ds_nodash",
        "inlets",
        "logical_date",
        "macros",
        "outlets",
        "params",
        "partition_key",
        "prev_data_interval_end_success",
        "prev_data_interval_start_success",
        "prev_end_date_success",
        "prev_start_date_success",
        "run_id",
        "task_reschedule_count",
        "triggering_asset_events",
        "ts",
        "ts_nodash",
        "ts_nodash_with_tz",
        "var",
    }
)


def same_for_all(value: Any) -> bool:
    """Say whether what ``partial()`` is given certainly has one value for all instances of the mapped task.

    A template may use what distinguishes them, such as ``ti.map_index``, or a macro of the DAG that nobody knows here.
    """
    if not is_deferred(value) or not isinstance(value, str):
        return True
    # Airflow has loaded it; at the top it would be one more import of every DAG file.
    from jinja2 import Environment, TemplateSyntaxError, meta  # noqa: PLC0415

    try:
        # A text that is never rendered here.
        names = meta.find_undeclared_variables(Environment(autoescape=True).parse(value))
    except TemplateSyntaxError:
        return False
    return names <= _OF_THE_RUN
