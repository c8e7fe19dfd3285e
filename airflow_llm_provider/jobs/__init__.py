"""Split, run one shard, merge: the only place that joins engine, client and dataset. No Airflow."""

from __future__ import annotations

import airflow_llm_provider.dataset.arrow.allocator  # noqa: F401 -- before anything loads pyarrow
from airflow_llm_provider.jobs.completing.accounts import Account, OpenAccounts
from airflow_llm_provider.jobs.completing.shard_run import ShardRun
from airflow_llm_provider.jobs.completing.shard_series import ShardSeries
from airflow_llm_provider.jobs.dataset_run import run_dataset
from airflow_llm_provider.jobs.merge import merge
from airflow_llm_provider.jobs.options import CompleteOptions, SplitOptions
from airflow_llm_provider.jobs.splitting.estimate import Estimate, SplitResult
from airflow_llm_provider.jobs.splitting.split import split
from airflow_llm_provider.jobs.splitting.split_by_file import count_files, list_files, plan_shards
from airflow_llm_provider.jobs.threshold import check_run

__all__ = [
    "Account",
    "CompleteOptions",
    "Estimate",
    "OpenAccounts",
    "ShardRun",
    "ShardSeries",
    "SplitOptions",
    "SplitResult",
    "check_run",
    "count_files",
    "list_files",
    "merge",
    "plan_shards",
    "run_dataset",
    "split",
]
