"""Provider metadata, read by Airflow through the ``apache_airflow_provider`` entry point."""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """Describe this provider in the form of Airflow's ``provider.yaml`` schema."""
    return {
        "package-name": "airflow-llm-provider",
        "name": "LLM",
        "description": "Run a model over a whole dataset, every night, without babysitting.",
        "versions": ["0.1.0"],
    }
