"""Whole DAGs by Airflow's own task runner: prompts by a function, jobs in mapped groups, callbacks, a time limit."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_llm_provider.dataset import read_results
from airflow_llm_provider.local.rest import wait_until
from airflow_llm_provider.testing.scripted_server import Rule

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "confidential-3f1"
HEAD = """
from datetime import datetime, timedelta
from pathlib import Path

from airflow.sdk import DAG, task, task_group
from airflow_llm_provider import CompleteDatasetOperator, CompletionSpec, llm_map, task_summary

HERE = Path(__file__).parent.as_uri()
SPEC = CompletionSpec(model="m", prompt="Ticket: {{ text }}", max_output_tokens=16, temperature=0)

with DAG("job", schedule=None, start_date=datetime(2026, 1, 1)):
"""


def dag_file(folder: Path, body: str, **texts: list[str]) -> Path:
    """Write a DAG file and, beside it, a dataset for each list of texts."""
    for name, values in texts.items():
        table = pa.table({"text": values, "id": list(range(len(values)))})
        pq.write_table(table, folder / f"{name}.parquet")
    file = folder / "job.py"
    lines = (f"    {line}" if line else line for line in body.strip("\n").split("\n"))
    file.write_text(HEAD + "\n".join(lines) + "\n", encoding="utf-8")
    return file


def prompts(server: Any) -> list[str]:
    return [request.prompt for request in server.requests]


def test_a_function_makes_the_prompts_and_a_row_that_it_refuses_is_set_aside(
    run_llm_dag, llm_server, tmp_path
):
    body = """
@task.llm_complete(spec=CompletionSpec(model="m", max_output_tokens=16, temperature=0), max_rows_per_shard=2)
def label(row):
    if row["id"] == 1:
        raise ValueError(row["text"])
    return None if row["id"] == 2 else f"{row['id']}: {row['text']}"

@task
def report(summary):
    return summary["rows_by_status"]

report(label(source=f"{HERE}/tickets.parquet", destination=f"{HERE}/labels").output)
"""
    file = dag_file(tmp_path, body, tickets=["a", SECRET, "c", "d", "e"])
    run = run_llm_dag(file)
    assert run.state == "success", run.log
    assert sorted(prompts(llm_server)) == ["0: a", "3: d", "4: e"]
    assert run.xcoms["report", -1, "return_value"] == {"success": 3, "rejected": 1, "empty_input": 1}
    assert "label() raised ValueError in line" in run.rows()[1]["llm_error"]
    assert SECRET not in run.log + str(run.xcoms)
    assert run_llm_dag(file).summary().requests == 0


def test_a_whole_job_lies_in_a_mapped_task_group(run_llm_dag, llm_server, tmp_path):
    body = """
@task_group
def of_country(country):
    @task(multiple_outputs=True)
    def place(country):
        return {"in": f"{HERE}/{country}.parquet", "out": f"{HERE}/labels/{country}"}

    places = place(country)
    CompleteDatasetOperator(
        task_id="label", spec=SPEC, source=places["in"], destination=places["out"], max_rows_per_shard=1
    )

of_country.expand(country=["de", "fr"])
"""
    run = run_llm_dag(dag_file(tmp_path, body, de=["eins", "zwei"], fr=["un"]))
    assert run.state == "success", run.log
    assert sorted(prompts(llm_server)) == ["Ticket: eins", "Ticket: un", "Ticket: zwei"]
    summaries = {index: run.xcoms["of_country.label", index, "run_summary"] for index in (0, 1)}
    assert [(summary["rows"], summary["shards"]) for summary in summaries.values()] == [(2, 2), (1, 1)]
    rows = read_results(f"{tmp_path.as_uri()}/labels/de").to_pylist()
    assert [row["answer"] for row in rows] == ["echo: Ticket: eins", "echo: Ticket: zwei"]


def test_a_job_is_mapped_over_sources(run_llm_dag, llm_server, tmp_path):
    body = """
@task
def sources():
    return [{"source": f"{HERE}/{name}.parquet", "destination": f"{HERE}/labels/{name}"} for name in ("de", "fr")]

@task.llm_complete(spec=CompletionSpec(model="m", max_output_tokens=16))
def label(row):
    return row["text"]

label.partial(concurrency=2).expand_kwargs(sources())
"""
    run = run_llm_dag(dag_file(tmp_path, body, de=["eins"], fr=["un"]))
    assert run.state == "success", run.log
    assert sorted(prompts(llm_server)) == ["eins", "un"]


def test_a_callback_says_how_a_shard_failed(run_llm_dag, llm_server, tmp_path):
    body = """
def tell(context):
    Path(__file__).with_name("notice.txt").write_text(task_summary(context))

llm_map(
    group_id="ask", spec=SPEC, source=f"{HERE}/tickets.parquet", destination=f"{HERE}/labels",
    concurrency=1, max_attempts=1, failure_threshold=0, complete_kwargs={"on_failure_callback": tell},
)
"""
    refusal = {"error": {"message": f"I choke on {SECRET}", "code": "server_error"}}
    llm_server.script(Rule(contains=SECRET, status=500, body=refusal))
    run = run_llm_dag(dag_file(tmp_path, body, tickets=["a", SECRET, "c"]))
    assert run.state == "failed"
    notice = (tmp_path / "notice.txt").read_text()
    where, numbers, errors, reason = notice.splitlines()
    assert where.startswith("job · ask.complete[0] · ")
    assert "failed; 2 success, 1 error; 3 requests, 0 answers reused" in numbers
    assert errors == "errors: 1 http_500"
    assert reason.startswith("1 of 3 rows (33.3%) have no answer")
    assert SECRET not in notice


def test_a_time_limit_keeps_the_answers_and_the_next_run_asks_the_rest(run_llm_dag, llm_server, tmp_path):
    body = """
llm_map(
    group_id="ask", spec=SPEC, source=f"{HERE}/tickets.parquet", destination=f"{HERE}/labels",
    concurrency=1, complete_kwargs={"execution_timeout": timedelta(hours=1)},
)
"""
    file = dag_file(tmp_path, body, tickets=["a", "b", "c", "d"])
    llm_server.script(Rule(contains="Ticket: c", fault="hang", times=1))

    def let_the_hour_pass():
        wait_until(lambda: "Ticket: c" in prompts(llm_server), timeout=500, what="the row is not asked")
        # What the limit's own timer sends.
        os.kill(run_llm_dag._airflow._process.pid, signal.SIGALRM)

    with ThreadPoolExecutor(1) as time:
        passed = time.submit(let_the_hour_pass)
        run = run_llm_dag(file)
        passed.result()
    assert run.states["ask.complete", 0] == "failed"
    state = run.xcoms["ask.complete", 0, "shard_state"]
    assert state["rows_by_status"] == {"success": 2, "pending": 2}
    assert "Every answer received is kept, the next try asks only for the rest" in run.log

    run = run_llm_dag(file)
    assert run.state == "success", run.log
    assert prompts(llm_server) == [f"Ticket: {text}" for text in "abccd"]
    assert run.summary().reused == 2


def test_a_dag_that_was_changed_runs_as_it_is_now(run_llm_dag, tmp_path):
    """Airflow 3.1 would go on for half a minute with the tasks of the test before."""
    for name in ("first", "second"):
        body = f"""
@task
def {name}():
    return "{name}"

{name}()
"""
        run = run_llm_dag(dag_file(tmp_path, body))
        assert run.state == "success", run.log
        assert run.xcoms[name, -1, "return_value"] == name


def test_the_nightly_form_as_it_is_labels_the_last_day_that_was_over(run_llm_dag, llm_server, tmp_path):
    folder = tmp_path / "tickets" / "ds=2026-01-31"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"subject": ["Refund"], "body": ["please"]}), folder / "tickets.parquet")
    # The form fills in now for a logical date.
    run = run_llm_dag(
        "dags/nightly_tickets.py",
        logical_date=datetime(2026, 2, 1, 9, 30, tzinfo=UTC),
        environment={"AIRFLOW__LLM_EXAMPLES__DATA": tmp_path.as_uri()},
    )
    assert run.state == "success", run.log
    assert run.summary().destination.endswith("/labels/ds=2026-01-31")
