"""Libraries that only some formats need."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from airflow_llm_provider.errors import LLMInputError


def load(module: str, *, what: str, remedy: str) -> Any:
    """Import a library.

    :param what: what it is needed for.
    :param remedy: how to get it.
    :raises LLMInputError: when it is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise LLMInputError(f"{what} needs {module}, which is not installed: {remedy}") from error


def of_extra(module: str, extra: str, *, what: str) -> Any:
    """Import the library of an extra of this package.

    :raises LLMInputError: naming the extra, when it is not installed.
    """
    return load(module, what=what, remedy=f"pip install 'airflow-llm-provider[{extra}]'")
