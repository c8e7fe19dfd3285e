"""A catalogue of the Python packages installed here, made by a model: the DAG that `make demo` runs.

The dataset is real and always at hand: name, summary and description of every installed distribution.
"""

from __future__ import annotations

import io
from datetime import datetime
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Literal

from airflow.configuration import conf
from airflow.sdk import DAG, ObjectStoragePath, Param, get_current_context, task
from pydantic import BaseModel

from airflow_llm_provider import CompletionSpec, llm_map

# Options of airflow.cfg. The first may be any URL that Airflow can read and write, such as s3://lake/demo.
DATA = conf.get("llm_examples", "data", fallback=f"file://{Path(__file__).resolve().parents[1]}/.local/data")
MODEL = conf.get("llm_examples", "model", fallback="smollm2-135m-instruct")


class CatalogueEntry(BaseModel):
    """What the catalogue says about a package."""

    category: Literal["web", "data", "testing", "packaging", "security", "language", "system"]
    audience: Literal["everyone", "scientists", "operators", "library authors"]


with DAG(
    "catalog_packages",
    description="Asks a model for category and audience of every installed Python package",
    schedule=None,
    start_date=datetime(2026, 1, 1),  # noqa: DTZ001 - Airflow reads it in its own time zone
    catchup=False,
    tags=["llm", "demo"],
    doc_md=__doc__,
    params={
        "rows": Param(
            60, type="integer", minimum=1, description="Packages to ask about, in order of their names"
        ),
        "model": Param(MODEL, type="string", minLength=1, description="Model, as the endpoint knows it"),
        "shard_tokens": Param(2500, type="integer", minimum=1, description="Prompt tokens of one shard"),
    },
):

    @task
    def collect(folder: str) -> str:
        """Write the dataset and return where it is."""
        # Only the worker needs these: the DAG processor reads this file every few seconds.
        import pyarrow as pa  # noqa: PLC0415
        import pyarrow.parquet as pq  # noqa: PLC0415

        found: dict[str, dict[str, Any]] = {}
        for distribution in distributions():
            known = distribution.metadata.json
            if known.get("name") and str(known.get("description", "")).strip():
                found[str(known["name"]).lower()] = {
                    column: known.get(column) for column in ("name", "version", "summary", "description")
                }
        rows = get_current_context()["params"]["rows"]
        table = pa.Table.from_pylist([found[name] for name in sorted(found)][:rows])
        buffer = io.BytesIO()
        pq.write_table(table, buffer)
        path = ObjectStoragePath(f"{folder}/packages.parquet")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(buffer.getvalue())
        return str(path)

    llm_map(
        group_id="catalogue",
        spec=CompletionSpec(
            model=MODEL,
            system="You catalogue Python packages. Answer in JSON.",
            prompt=(
                "Package: {{ name }}\n"
                "Summary: {{ summary }}\n"
                "Description:\n{{ description | truncate(400, True, '') }}"
            ),
            output_schema=CatalogueEntry,
            max_output_tokens=96,
            temperature=0,
        ),
        model="{{ params.model }}",
        source=collect(f"{DATA}/packages"),
        destination=f"{DATA}/catalogue",
        shard_tokens="{{ params.shard_tokens }}",
        pool="llm",
        # Two shards share the pool's four slots. A small model on a busy machine may take its time.
        concurrency=2,
        timeout=180,
        progress_interval=5,
    )
