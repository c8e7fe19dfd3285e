"""A person in a browser: triggers by the form, reads the map's labels, follows a task's link to the run's page."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from packaging.version import Version

from airflow_llm_provider.local.rest import wait_until
from airflow_llm_provider.testing.scripted_server import Rule
from tests.system.browser import browser
from tests.system.stage import API_KEY, ROW_TEXT, SYSTEM, Run, rows

if TYPE_CHECKING:
    from airflow_llm_provider.xcom import RunSummary
    from tests.system.browser import Browser
    from tests.system.stage import Stage

pytestmark = SYSTEM

DAG_ID = "patient"
ROWS = rows(*range(7))
#: The login of Airflow 3.1 leads to the home page, wherever somebody came from.
LEADS_BACK = Version(version("apache-airflow-core")) >= Version("3.2")


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What was to be read on the way, and what went wrong in the browser."""

    summary: RunSummary
    form: str
    ended: str
    labels: str
    rendered: str
    link: str
    page: str
    page_of_no_run: str
    complaints: list[str]
    after_logging_out: str


def in_a_browser(stage: Stage) -> Facts:
    stage.write(ROWS)
    refusal = {"error": {"message": ROW_TEXT, "code": "content_filter"}}
    stage.server.script(Rule(contains=ROWS[3], status=400, body=refusal))
    with browser() as person:
        form = fill_in(person, stage)
        run = triggered(person, stage)
        # The page would ask the API server all the time, which also serves the tasks.
        person.driver.get("about:blank")
        ended = run.end()
        of_run = f"{stage.airflow.url}/dags/{DAG_ID}/runs/{quote(run.run_id)}"
        labels = person.read(f"{of_run}/tasks/ask.complete/mapped", "shard 0002")
        rendered = person.read(f"{of_run}/tasks/ask.split/rendered_templates", "max_rows_per_shard")
        person.driver.get(f"{of_run}/tasks/ask.complete/mapped/1/details")
        link = person.find("//a[normalize-space()='Run summary']").get_attribute("href")
        person.driver.get_log("browser")
        person.follow("//a[normalize-space()='Run summary']")
        page = shown(person)
        complaints = person.complaints()
        person.driver.get(
            f"{stage.airflow.url}/llm/?{urlencode({'dag_id': DAG_ID, 'run_id': '<b>none</b>'})}"
        )
        nothing = person.find("//*[@role='alert']").text
        person.driver.delete_all_cookies()
        log_in(person, str(link))
        return Facts(
            summary=run.summary(),
            form=form,
            ended=ended,
            labels=labels,
            rendered=rendered,
            link=str(link),
            page=page,
            page_of_no_run=nothing,
            complaints=complaints,
            after_logging_out=shown(person),
        )


def log_in(person: Browser, url: str) -> None:
    """Open a page as somebody who is not logged in."""
    person.driver.get(url)
    if not LEADS_BACK:
        person.find("//*[normalize-space()='Welcome']")
        person.driver.get(url)


def fill_in(person: Browser, stage: Stage) -> str:
    """Trigger by the form, and return what it says."""
    log_in(person, f"{stage.airflow.url}/dags/{DAG_ID}")
    person.click("//button[normalize-space()='Trigger']")
    values = {
        "source": str(stage.source),
        "destination": f"file://{stage.destination}",
        "conn_id": stage.name,
        "rows_per_shard": "3",
    }
    for name, value in values.items():
        person.type(f"//input[@name='element_{name}']", value)
    return person.text()


def triggered(person: Browser, stage: Stage) -> Run:
    """Send the form, and find the run that it makes, among those of other scenes."""
    found: list[dict[str, Any]] = []
    send = "//*[@role='dialog']//button[normalize-space()='Trigger']"
    person.click(send)

    def there() -> bool:
        # On SQLite Airflow refuses what comes while another process writes; the dialog stays, and a person tries again.
        if not found and person.refused():
            person.click(send)
        found[:] = [
            run for run in stage.client.runs(DAG_ID) if (run["conf"] or {}).get("conn_id") == stage.name
        ]
        return bool(found)

    wait_until(
        there,
        timeout=300,
        what="the form made no run",
        explain=lambda: f", and says {person.text()!r}",
        poll=1.0,
    )
    return Run(client=stage.client, dag_id=DAG_ID, run_id=found[0]["dag_run_id"])


def shown(person: Browser) -> str:
    """Wait until the run's page has shown an ended run, and return what it says."""
    person.find("//body[@data-shown='success']")
    return person.text()


class TestTriggerForm:
    scene = staticmethod(in_a_browser)

    def test_A23_says_what_each_field_is_and_starts_the_run(self, facts: Facts) -> None:
        assert "Most rows of one shard" in facts.form
        assert facts.ended == "success"
        assert facts.summary.shards == 3


class TestGrid:
    scene = staticmethod(in_a_browser)

    def test_A17_shards_are_known_by_their_labels(self, facts: Facts) -> None:
        assert "shard 0000 · rows 0-2" in facts.labels
        assert "shard 0002 · row 6" in facts.labels

    def test_rendered_fields_can_be_read(self, facts: Facts) -> None:
        # The highlighter puts every sign that it knows on a line of its own.
        rendered = facts.rendered.replace("\n", "")
        assert f"destination1{facts.summary.destination}" in rendered
        assert "***" not in rendered


class TestRunPage:
    scene = staticmethod(in_a_browser)

    def test_a_task_links_to_it(self, facts: Facts) -> None:
        assert "/llm/?dag_id=patient&" in facts.link
        assert facts.link.endswith("&task_id=ask.complete&map_index=1")

    def test_shows_rows_output_and_shards(self, facts: Facts) -> None:
        lines = facts.page.splitlines()
        assert lines[lines.index("Rows") + 1] == "7"
        assert lines[lines.index("Requests") + 1] == "7"
        assert "6 success" in lines
        assert "1 content_filter" in lines
        assert facts.summary.destination in lines
        assert facts.summary.rejects in lines
        assert "Shards that have ended: 3 of 3" in facts.page
        assert "shard 0001 · rows 3-5" in facts.page

    def test_shows_no_row_and_no_secret(self, facts: Facts) -> None:
        assert ROW_TEXT not in facts.page
        assert API_KEY not in facts.page

    def test_works_without_complaints_of_the_browser(self, facts: Facts) -> None:
        assert facts.complaints == []

    def test_says_so_when_there_is_no_such_run(self, facts: Facts) -> None:
        assert facts.page_of_no_run == "There is no such run, or it was deleted."

    def test_sends_those_who_are_not_logged_in_to_airflows_login_and_back(self, facts: Facts) -> None:
        assert facts.after_logging_out == facts.page
