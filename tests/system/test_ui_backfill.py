"""A person runs a range of dates from Airflow's own dialog."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_llm_provider.dataset import read_results
from airflow_llm_provider.local.airflow.local_airflow import LocalAirflow
from airflow_llm_provider.local.rest import wait_until
from airflow_llm_provider.testing.scripted_server import ScriptedServer
from tests.system.browser import browser
from tests.system.stage import SYSTEM

if TYPE_CHECKING:
    from pathlib import Path

    from tests.system.browser import Browser

# A minute, and an Airflow of its own: the nightly scene backfills by CLI and REST in every run of the suite.
pytestmark = [*SYSTEM, pytest.mark.soak]

DAG_ID = "by_date"
DAG = """
from datetime import datetime
from airflow.sdk import DAG
from airflow_llm_provider import CompletionSpec, llm_map
with DAG({dag_id!r}, schedule="0 0 * * *", start_date=datetime(2026, 1, 1), catchup=False):
    llm_map(
        group_id="ask",
        spec=CompletionSpec(model="m", prompt="{{{{ text }}}}", max_output_tokens=8),
        source="{folder}/rows.csv",
        destination="file://{folder}/answers/ds={{{{ ds }}}}",
        concurrency=2,
    )
"""
DAYS = ("2026-01-05", "2026-01-06")


def backfilled(person: Browser, url: str) -> None:
    """Fill in the dialog as the how-to says, and send it."""
    person.driver.get(f"{url}/dags/{DAG_ID}")
    person.click("//button[normalize-space()='Trigger']")
    person.click("//*[@role='dialog']//*[normalize-space(text())='Backfill']")
    for day in DAYS:
        person.click("//*[normalize-space(text())='Select date and time']")
        person.type("//input[@placeholder='YYYY/MM/DD']", day.replace("-", "/"))
        person.type("//input[@placeholder='HH:mm']", "00:00")
        person.click("//*[normalize-space(text())='Date Range']")
    person.click("//*[@role='dialog']//button[normalize-space()='Run Backfill']")


def test_a_range_of_dates_from_the_dialog_makes_one_output_for_each(tmp_path: Path) -> None:
    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / "by_date.py").write_text(DAG.format(dag_id=DAG_ID, folder=tmp_path))
    (tmp_path / "rows.csv").write_text("text\none\ntwo\n")
    with (
        ScriptedServer() as server,
        LocalAirflow(tmp_path / "airflow", dags) as airflow,
        airflow.client(timeout=120) as client,
    ):
        client.put_connection("llm_default", conn_type="llm", host=server.base_url, password="none")
        client.wait_for_dag(DAG_ID)
        client.unpause(DAG_ID)
        with browser() as person:
            backfilled(person, airflow.url)

            def ended() -> bool:
                made = [run for run in client.runs(DAG_ID) if run["run_type"] == "backfill"]
                return len(made) == len(DAYS) and all(run["state"] == "success" for run in made)

            wait_until(ended, timeout=180, what="the dialog made no runs", explain=person.text, poll=2.0)
    for day in DAYS:
        assert read_results(str(tmp_path / "answers" / f"ds={day}")).num_rows == 2
