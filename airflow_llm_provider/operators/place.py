"""Which task of which DAG an error of the DAG file belongs to: one file often builds many."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow.sdk.definitions._internal.contextmanager import DagContext, TaskGroupContext

from airflow_llm_provider.errors import LLMInputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["dag_named", "naming", "naming_task"]


@contextmanager
def naming(place: str, *errors: type[Exception]) -> Iterator[None]:
    """Begin the message of an error with the place it belongs to, in place of a smaller one that it may name.

    :param place: such as ``DAG 'nightly', task 'label'``.
    :param errors: further errors that are those of a wrong argument.
    """
    caught: tuple[type[Exception], ...] = (LLMInputError, *errors)
    try:
        yield
    except caught as error:
        inner = error.__cause__
        named_already = isinstance(inner, LLMInputError) and str(error).endswith(f": {inner}")
        said = inner if named_already else error
        raise LLMInputError(f"{place}: {said}") from said


@contextmanager
def naming_task(arguments: Mapping[str, Any]) -> Iterator[None]:
    """Name the task in the message of an error.

    :param arguments: of the operator.
    """
    dag = arguments.get("dag") or DagContext.get_current()
    group = arguments.get("task_group") or (TaskGroupContext.get_current(dag) if dag else None)
    task_id = arguments.get("task_id")
    if group is not None and task_id is not None:
        task_id = group.child_id(task_id)
    with naming(dag_named(f"task {task_id!r}", dag)):
        yield


def dag_named(part: str, dag: Any = None) -> str:
    """Put the DAG before a part of it; the part alone outside of any DAG.

    :param part: such as ``task 'label'``.
    :param dag: the DAG, when it is not the one that is being built.
    """
    dag = dag or DagContext.get_current()
    return part if dag is None else f"DAG {dag.dag_id!r}, {part}"
