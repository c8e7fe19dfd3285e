"""DAGs whose runs are cleared in every way there is; one of them gets other prompts meanwhile."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG, Param

from airflow_llm_provider import CompletionSpec, llm_map

PROMPTS = {"ways_failed": "Ticket: {{ text }}", "ways_green": "Version 1: {{ text }}"}
RETRIES = {"ways_failed": 0, "ways_green": 1}

for dag_id, prompt in PROMPTS.items():
    with DAG(
        dag_id,
        schedule="@daily",
        start_date=datetime(2026, 1, 1, tzinfo=UTC),
        # Its schedule is over, so that nothing runs but what a test wants.
        end_date=datetime(2026, 1, 2, tzinfo=UTC),
        catchup=False,
        default_args={"retries": RETRIES[dag_id], "retry_delay": timedelta(seconds=1)},
        params={
            "source": Param("unset", type="string"),
            "destination": Param("unset", type="string"),
            "conn_id": Param("unset", type="string"),
            "start_over": Param(False, type="boolean"),
        },
    ):
        llm_map(
            group_id="ask",
            spec=CompletionSpec(model="scripted", prompt=prompt, max_output_tokens=16, temperature=0),
            source="{{ params.source }}",
            destination="{{ params.destination }}",
            conn_id="{{ params.conn_id }}",
            start_over="{{ params.start_over }}",
            max_rows_per_shard=2,
            concurrency=1,
            max_attempts=1,
            failure_threshold=0,
        )
