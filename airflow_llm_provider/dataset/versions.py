"""Versions of the packages that make a plan what it is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def package_versions() -> dict[str, str]:
    """Return the versions of the packages that make a plan what it is."""
    versions = {}
    for package in ("airflow-llm-provider", "pyarrow", "tiktoken"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions
