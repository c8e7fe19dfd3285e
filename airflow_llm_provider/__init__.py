"""Run a model over a whole dataset, every night, inside Apache Airflow.

Names are loaded on first use, so that a DAG file that imports this package costs the DAG processor nothing:
no pandas, pyarrow, openai or tiktoken is loaded by importing it or by building a DAG with :func:`llm_map`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_llm_provider.hooks.llm import LLMHook
    from airflow_llm_provider.jobs import run_dataset
    from airflow_llm_provider.notifications.task_summary import task_summary
    from airflow_llm_provider.operators.complete import CompleteShardOperator
    from airflow_llm_provider.operators.dataset import CompleteDatasetOperator
    from airflow_llm_provider.operators.merge import MergeShardsOperator
    from airflow_llm_provider.operators.shard import ShardDatasetOperator
    from airflow_llm_provider.operators.split_by_file import (
        CountFilesOperator,
        ListFilesOperator,
        PlanShardsOperator,
    )
    from airflow_llm_provider.scheduling.retry_policy import LLMRetryPolicy
    from airflow_llm_provider.spec import CompletionSpec
    from airflow_llm_provider.task_groups.llm_map import llm_map

__version__ = "0.1.0"

__all__ = [
    "CompleteDatasetOperator",
    "CompleteShardOperator",
    "CompletionSpec",
    "CountFilesOperator",
    "LLMHook",
    "LLMRetryPolicy",
    "ListFilesOperator",
    "MergeShardsOperator",
    "PlanShardsOperator",
    "ShardDatasetOperator",
    "__version__",
    "llm_map",
    "run_dataset",
    "task_summary",
]

_HOMES = {
    "CompleteDatasetOperator": "operators.dataset",
    "CompleteShardOperator": "operators.complete",
    "CompletionSpec": "spec",
    "CountFilesOperator": "operators.split_by_file",
    "LLMHook": "hooks.llm",
    "LLMRetryPolicy": "scheduling.retry_policy",
    "ListFilesOperator": "operators.split_by_file",
    "MergeShardsOperator": "operators.merge",
    "PlanShardsOperator": "operators.split_by_file",
    "ShardDatasetOperator": "operators.shard",
    "llm_map": "task_groups.llm_map",
    "run_dataset": "jobs",
    "task_summary": "notifications.task_summary",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
