"""The tasks of an :func:`~airflow_llm_provider.task_groups.llm_map.llm_map` that cut the dataset: one, or three."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_llm_provider.errors import LLMInputError
from airflow_llm_provider.operators.shard import ShardDatasetOperator
from airflow_llm_provider.operators.split_by_file import (
    CountFilesOperator,
    ListFilesOperator,
    PlanShardsOperator,
)
from airflow_llm_provider.task_groups.task_docs import DOCS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk.definitions.mappedoperator import MappedOperator

_SPLIT_ARGUMENTS = ("spec", *ShardDatasetOperator.template_fields)
_PLAN_ARGUMENTS = ("destination", "conn_id", "conn_ids", "storage_conn_id", "start_over")


def split_tasks(
    arguments: Mapping[str, Any], common: Mapping[str, Any]
) -> tuple[ListFilesOperator | None, MappedOperator | None, ShardDatasetOperator | PlanShardsOperator]:
    """Make the tasks, and return what lists, what counts, and what returns the shards.

    :param arguments: those of ``llm_map``.
    :param common: arguments of every task.
    :raises LLMInputError: on another way to split.
    """
    split_by = arguments["split_by"]
    if split_by not in (None, "file"):
        raise LLMInputError(f"split_by is {split_by!r}: give 'file' or None")
    if split_by == "file" and callable(arguments["spec"].prompt):
        raise LLMInputError(
            "split_by is 'file' and the prompt is a function, which the tasks that count files do not know: use a template, "
            "or leave split_by out"
        )
    own = {name: arguments[name] for name in _SPLIT_ARGUMENTS}
    # Tasks are mapped over what these push: without it there is no job.
    common = {"do_xcom_push": True, **common}
    if split_by is None:
        return None, None, ShardDatasetOperator(task_id="split", **{"doc_md": DOCS["split"], **own, **common})
    listing = ListFilesOperator(
        task_id="list",
        split_bytes=arguments["split_bytes"],
        **{"doc_md": DOCS["list"], **own, **common},
    )
    count = CountFilesOperator.partial(
        task_id="count",
        destination=arguments["destination"],
        storage_conn_id=arguments["storage_conn_id"],
        **{"doc_md": DOCS["count"], **common},
    ).expand(files=listing.output)
    plan = PlanShardsOperator(
        task_id="plan",
        listing=listing.listing,
        **{"doc_md": DOCS["plan"], **{name: arguments[name] for name in _PLAN_ARGUMENTS}, **common},
    )
    count >> plan
    return listing, count, plan
