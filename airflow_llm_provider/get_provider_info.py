"""Provider metadata, read by Airflow through the ``apache_airflow_provider`` entry point."""

from __future__ import annotations

from typing import Any

from airflow_llm_provider.hooks.form import CONN_FIELDS, UI_FIELD_BEHAVIOUR

_INTEGRATION = "LLM"


def get_provider_info() -> dict[str, Any]:
    """Describe this provider in the form of Airflow's ``provider_info`` schema."""
    return {
        "package-name": "airflow-llm-provider",
        "name": "LLM",
        "description": "Run a model over a whole dataset, every night, without babysitting.",
        "versions": ["0.1.0"],
        "integrations": [
            {
                "integration-name": _INTEGRATION,
                "external-doc-url": "https://platform.openai.com/docs/api-reference/chat",
                "tags": ["ai"],
            }
        ],
        "hooks": [{"integration-name": _INTEGRATION, "python-modules": ["airflow_llm_provider.hooks.llm"]}],
        "operators": [
            {
                "integration-name": _INTEGRATION,
                "python-modules": [
                    "airflow_llm_provider.operators.complete",
                    "airflow_llm_provider.operators.dataset",
                    "airflow_llm_provider.operators.merge",
                    "airflow_llm_provider.operators.shard",
                    "airflow_llm_provider.operators.split_by_file",
                ],
            }
        ],
        "connection-types": [
            {
                "connection-type": "llm",
                "hook-class-name": "airflow_llm_provider.hooks.llm.LLMHook",
                "hook-name": "LLM (OpenAI-compatible)",
                # Read by Airflow 3.2 and newer; 3.1 asks the hook.
                "conn-fields": CONN_FIELDS,
                "ui-field-behaviour": UI_FIELD_BEHAVIOUR,
            }
        ],
        "task-decorators": [
            {
                "name": "llm_complete",
                "class-name": "airflow_llm_provider.decorators.llm_complete.llm_complete_task",
            }
        ],
        "extra-links": ["airflow_llm_provider.links.run_page.RunPageLink"],
        "config": {
            "llm": {
                "description": "Defaults of airflow-llm-provider.",
                "options": {
                    "default_pool": {
                        "description": (
                            "Pool in which llm_map completes shards when a DAG names none. One slot is one request "
                            "in flight."
                        ),
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "llm",
                        "default": "default_pool",
                    },
                    "limiter_url": {
                        "description": (
                            "Where everyone who uses an account shares its limits, unless its connection says "
                            "otherwise: file:// for one machine, redis://HOST:6379/0 for all machines."
                        ),
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "redis://redis:6379/0",
                        # Not "file://": Airflow masks what a sensitive option says, in every path that it shows.
                        "default": None,
                        "sensitive": True,
                    },
                },
            }
        },
    }
