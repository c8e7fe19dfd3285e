"""Datasets on storage: read, count, plan, cut into shards, journal answers, merge. No Airflow, no vendor."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_llm_provider.dataset.merging.output import read_results

__all__ = ["read_results"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.merging.output"), name)
