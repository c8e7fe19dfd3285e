"""What the triggerer calls when a run is late: it can import a module of the plugins folder, and no DAG file."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from airflow_llm_provider import task_summary

__all__ = ["tell_from_triggerer"]


async def tell_from_triggerer(context: dict[str, Any]) -> None:
    """Write down what is said."""
    notice = Path(f"{urlsplit(os.environ['AIRFLOW__LLM_EXAMPLES__DATA']).path}/late_run/triggerer.txt")
    await asyncio.to_thread(notice.write_text, task_summary(context), encoding="utf-8")  # type: ignore[arg-type]
