"""``@task.llm_complete``: a Python function of one row makes the prompt, and ``llm_map`` does the rest."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, overload

from airflow_llm_provider.errors import LLMInputError
from airflow_llm_provider.operators.dataset import CompleteDatasetOperator
from airflow_llm_provider.operators.place import dag_named, naming
from airflow_llm_provider.spec import innermost
from airflow_llm_provider.task_groups.llm_map import llm_map, with_prompt

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from airflow.sdk.definitions.mappedoperator import MappedOperator, OperatorPartial

    from airflow_llm_provider.task_groups.llm_map import LLMTaskGroup


class RowTask:
    """A function of one row that, called within a DAG, becomes the job that asks the model about every row.

    :param function: from a row to its messages; also reached as :attr:`function`, to be tested without Airflow.
    :param arguments: of :func:`~airflow_llm_provider.llm_map`.
    """

    def __init__(self, function: Callable[[dict[str, Any]], Any], arguments: dict[str, Any]) -> None:
        self.function = function
        self._arguments = arguments
        inner = innermost(function)
        # An object that is called has no name; the text of a lambda's is none.
        self._known_as = str(getattr(inner, "__name__", f"<{type(inner).__name__}>"))
        functools.update_wrapper(self, inner)

    def __call__(self, *rows: Any, **arguments: Any) -> LLMTaskGroup:
        """Build the job: ``source`` and ``destination``, and whatever else is to differ from the decorator's.

        :raises LLMInputError: on a wrong argument, naming the DAG and the remedy.
        """
        merged = {**self._arguments, **arguments}
        with self._naming():
            if rows:
                raise LLMInputError(
                    "it was called with a row: in a DAG it takes the arguments of llm_map, such as source= and destination=; "
                    "the function itself is its attribute .function"
                )
            merged["group_id"] = merged.get("group_id") or self._name()
            missing = [name for name in ("spec", "source", "destination") if name not in merged]
            if missing:
                raise LLMInputError(f"it lacks {', '.join(missing)}: give it to the decorator or to the call")
        return llm_map(prompt=self.function, **merged)

    def partial(self, **arguments: Any) -> OperatorPartial:
        """Prepare the same job in one task, to be mapped: ``label.partial(pool="llm").expand_kwargs([...])``.

        :param arguments: of :class:`~airflow_llm_provider.CompleteDatasetOperator`.
        :raises LLMInputError: on a wrong argument.
        """
        merged = {**self._arguments, **arguments}
        with self._naming():
            task_id = merged.pop("group_id", None) or self._name()
            spec = merged.pop("spec", None)
            if spec is None:
                raise LLMInputError("it lacks spec: give it to the decorator")
            spec = with_prompt(spec, self.function)
        return CompleteDatasetOperator.partial(task_id=task_id, spec=spec, **merged)

    def expand(self, **mapped: Any) -> MappedOperator:
        """Do the job once for each item, each in one task: ``label.expand(source=[...], destination=[...])``."""
        return self.partial().expand(**mapped)

    def override(self, **arguments: Any) -> RowTask:
        """Return the same function with other arguments, such as ``group_id`` to use it twice in one DAG."""
        return RowTask(self.function, self._arguments | arguments)

    def _naming(self) -> AbstractContextManager[None]:
        return naming(dag_named(f"@task.llm_complete {self._arguments.get('group_id', self._known_as)!r}"))

    def _name(self) -> str:
        """Return the name of the function for its tasks.

        :raises LLMInputError: when it has none.
        """
        if not self._known_as.isidentifier():
            raise LLMInputError(f"{self._known_as} has no name that its tasks could have: give group_id")
        return self._known_as


@overload
def llm_complete_task(python_callable: Callable[[dict[str, Any]], Any]) -> RowTask: ...


@overload
def llm_complete_task(**arguments: Any) -> Callable[[Callable[[dict[str, Any]], Any]], RowTask]: ...


def llm_complete_task(
    python_callable: Callable[[dict[str, Any]], Any] | None = None, **arguments: Any
) -> RowTask | Callable[[Callable[[dict[str, Any]], Any]], RowTask]:
    """Ask a model about every row of a dataset, with the prompt that a Python function makes of the row.

    ::

        @task.llm_complete(spec=CompletionSpec(model="gpt-4o-mini", output_schema=Ticket), pool="llm")
        def label(row):
            return f"Ticket of {row['customer']}: {row['body']}"


        label(source="s3://lake/tickets/ds={{ ds }}/*.parquet", destination="s3://lake/labels/ds={{ ds }}")

    The call returns what :func:`~airflow_llm_provider.llm_map` returns: the task group ``label`` with its handles.

    :param python_callable: the function, when the decorator is used without arguments.
    :param arguments: of :func:`~airflow_llm_provider.llm_map`; its ``spec`` has no prompt. The group's id is the
        function's name unless given, also that of the function in a ``functools.partial``; a lambda has none.
    """
    if python_callable is not None:
        return RowTask(python_callable, arguments)
    return lambda function: RowTask(function, arguments)
