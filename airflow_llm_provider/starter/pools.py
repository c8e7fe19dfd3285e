"""The pools that the example DAGs and the how-tos name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import airflow_llm_provider

__all__ = ["POOL", "pools"]

POOL = "llm"


def pools() -> dict[str, dict[str, Any]]:
    """Return the pools of the package's `pools.json`, a file for `airflow pools import`."""
    file = Path(airflow_llm_provider.__file__).with_name("pools.json")
    found: dict[str, dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    return found
