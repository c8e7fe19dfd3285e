"""The form in which records cross XCom: plain JSON values, and a version that a reader checks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from airflow_llm_provider.engine.usage import Usage
from airflow_llm_provider.errors import LLMInputError

__all__ = ["SCHEMA_VERSION", "fields_of", "plain", "usage_of"]

#: Version of the records. Readers refuse a newer one by name instead of guessing.
SCHEMA_VERSION = 1


def fields_of(cls: type[Any], value: object, what: str) -> dict[str, Any]:
    """Check shape and version, and drop fields a later minor version may have added."""
    if not isinstance(value, Mapping):
        raise LLMInputError(f"expected {what}, a mapping, and got {type(value).__name__}")
    version = value.get("schema_version")
    if version != SCHEMA_VERSION:
        raise LLMInputError(
            f"{what} has schema_version {version!r}, this version reads {SCHEMA_VERSION}: "
            "clear the split task and everything after it"
        )
    names = {f.name: f for f in dataclasses.fields(cls)}
    missing = [
        name
        for name, f in names.items()
        if name not in value and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise LLMInputError(f"{what} lacks {', '.join(missing)}")
    return {name: value[name] for name in names if name in value}


def usage_of(value: object) -> Usage:
    """Read token counts."""
    if not isinstance(value, Mapping):
        raise LLMInputError(f"expected token counts, a mapping, and got {type(value).__name__}")
    names = [f.name for f in dataclasses.fields(Usage)]
    return Usage(**{name: value[name] for name in names if name in value})


def plain(value: Any) -> Any:
    """Replace tuples by lists, mappings by dicts and enumerations by their text: what JSON knows.

    A text that is more than a text, such as a row status, would travel as a class that the reader may not load.
    """
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value
