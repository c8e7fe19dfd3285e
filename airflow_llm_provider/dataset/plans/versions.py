"""Versions of the packages that make a plan what it is."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@cache
def package_versions() -> Mapping[str, str]:
    """Return the versions of the packages that make a plan what it is."""
    versions = {}
    for package in ("airflow-llm-provider", "pyarrow", "tiktoken"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return MappingProxyType(versions)
