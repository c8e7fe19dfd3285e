"""Which shards go first when a pool is full: those of a backfill last."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from airflow.task.priority_strategy import PriorityWeightStrategy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.models.taskinstance import TaskInstance  # noqa: TID251 -- a type

__all__ = ["BACKFILL_DISCOUNT", "BACKFILL_LAST", "BackfillLast", "is_registered", "weight_rule"]

#: What a mapped task's ``weight_rule`` must be: Airflow takes an instance from tasks that are not mapped only.
BACKFILL_LAST = "airflow_llm_provider.scheduling.priority.BackfillLast"
#: More than the weights of any DAG's tasks sum up to, and far from the bounds of a 32-bit number.
BACKFILL_DISCOUNT = 1_000_000
_BACKFILL = "backfill"


class BackfillLast(PriorityWeightStrategy):
    """Weighs as ``downstream``, Airflow's default, does, and a task of a backfill less than any other.

    At equal weights the scheduler takes the oldest date first, so a backfill of the past would have every free slot of the
    pool before the run of the night.
    """

    def get_weight(self, ti: TaskInstance) -> int:
        """Return the weight; the larger goes first."""
        task: Any = ti.task
        dag = task.get_dag()
        followers = () if dag is None else task.get_flat_relative_ids(upstream=False)
        weight: int = task.priority_weight + sum(dag.task_dict[name].priority_weight for name in followers)
        return weight - BACKFILL_DISCOUNT if _of_backfill(ti) else weight


def _of_backfill(ti: Any) -> bool:
    # A run that a backfill runs again keeps its id and changes its type. Loading the run here would need a session.
    run = ti.__dict__.get("dag_run")
    kind = getattr(run, "run_type", None) or str(ti.run_id or "").partition("__")[0]
    return str(getattr(kind, "value", kind)) == _BACKFILL


def weight_rule(defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rule of mapped tasks, as an argument; none where somebody has chosen another.

    :param defaults: arguments that hold unless a task has its own.
    """
    return {"weight_rule": BACKFILL_LAST} if is_registered() and "weight_rule" not in defaults else {}


@cache
def is_registered() -> bool:
    """Tell whether Airflow will know the strategy: one that it does not know makes a whole DAG unreadable."""
    return any(
        point.value.startswith("airflow_llm_provider.plugins.pools:")
        for point in entry_points(group="airflow.plugins")
    )
