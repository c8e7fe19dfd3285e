from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_llm_provider.testing.scripted_server import Rule

DAG_FILE = "dags/nightly_tickets.py"


def write_tickets(lake: Path, *subjects: str) -> dict[str, str]:
    """Write the tickets of a day; return the environment in which the DAG finds them."""
    folder = lake / "tickets" / "ds=2026-01-31"
    folder.mkdir(parents=True, exist_ok=True)
    table = pa.table({"subject": subjects, "body": ["…"] * len(subjects)})
    pq.write_table(table, folder / "tickets.parquet")
    return {"AIRFLOW__LLM_EXAMPLES__DATA": lake.as_uri()}


def test_every_ticket_gets_one_answer_and_none_is_paid_for_twice(run_llm_dag, llm_server, tmp_path):
    lake = write_tickets(tmp_path, "Refund", "Crash")
    run = run_llm_dag(DAG_FILE, params={"date": "2026-01-31"}, environment=lake)
    assert run.state == "success", run.log
    llm_server.assert_answered_once("Refund", "Crash")
    assert [(row["subject"], row["llm_status"]) for row in run.rows()] == [
        ("Refund", "success"),
        ("Crash", "success"),
    ]

    lake = write_tickets(tmp_path, "Refund", "Crash", "Parcel")  # one comes late
    run = run_llm_dag(DAG_FILE, params={"date": "2026-01-31"}, environment=lake)
    llm_server.assert_answered_once("Refund", "Crash", "Parcel")
    assert (run.summary().requests, run.summary().rows) == (1, 3)


def test_an_answer_that_is_no_ticket_is_set_aside(run_llm_dag, llm_server, tmp_path):
    llm_server.script(Rule(contains="Crash", answer='{"team": "weather"}'))
    lake = write_tickets(tmp_path, "Refund", "Crash")
    run = run_llm_dag(DAG_FILE, params={"date": "2026-01-31"}, environment=lake)
    assert [row["llm_status"] for row in run.rows()] == ["success", "invalid_output"]


def test_a_refused_key_fails_the_run_after_one_request(run_llm_dag, llm_server, tmp_path):
    llm_server.script(Rule(status=401))
    lake = write_tickets(tmp_path, "Refund", "Crash")
    run = run_llm_dag(DAG_FILE, params={"date": "2026-01-31"}, environment=lake)
    assert run.states["label.complete", 0] == "failed"
    assert run.state == "failed"
    assert "does not accept the key" in run.log
