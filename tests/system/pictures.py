"""The pictures of README.md and docs/: a real Airflow with the small model, as a browser shows it. `make pictures` makes them."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from airflow_llm_provider.local import LocalAirflow
from airflow_llm_provider.local.demo.home import default_dags, prepare_airflow
from airflow_llm_provider.local.demo.model_server import ModelServer
from airflow_llm_provider.starter.tickets import write_sample_tickets
from airflow_llm_provider.testing.scripted_server import Rule, ScriptedServer
from tests.system.browser import browser

if TYPE_CHECKING:
    from airflow_llm_provider.local import AirflowClient
    from tests.system.browser import Browser

IMAGES = Path(__file__).parents[2] / "docs" / "images"
#: Shown in the pictures as the place of the data.
LAKE = Path("/tmp/lake")
CATALOGUE, TICKETS = "catalog_packages", "nightly_tickets"
TICKET = '{"team": "billing", "urgency": "normal", "angry": false}'
FILTERED = {"error": {"message": "The prompt was filtered", "code": "content_filter"}}
_SECONDS = 900.0


class Camera:
    """A browser that keeps what it shows.

    :param person: the browser.
    :param airflow: address of Airflow.
    """

    def __init__(self, person: Browser, airflow: str) -> None:
        self.person = person
        self.airflow = airflow

    def open(self, path: str, *, height: int, until: str) -> None:
        """Open a page in a window of that height, drawn finer than on a plain screen, and wait until it says something."""
        size = {"width": 1400, "height": height, "deviceScaleFactor": 1.5, "mobile": False}
        self.person.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.person.driver.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
        self.person.read(f"{self.airflow}{path}", until)

    def take(self, name: str, *, until: str) -> None:
        """Wait until the page says something, and keep the picture."""
        self.wait_for(until)
        self.person.driver.save_screenshot(str(IMAGES / f"{name}.png"))

    def wait_for(self, words: str) -> None:
        """Wait until the page says something."""
        self.person.wait(lambda _: words in self.person.text(), words)


def page_of(dag_id: str, run_id: str, path: str) -> str:
    """Return the path of a page of a run."""
    return f"/dags/{dag_id}/runs/{quote(run_id)}/{path}"


def run(client: AirflowClient, dag_id: str, **params: object) -> str:
    """Run a DAG to its end and return the run's id."""
    run_id = client.trigger(dag_id, params=params)
    state = client.wait_for_run(dag_id, run_id, timeout=_SECONDS)
    if state != "success":
        raise AssertionError(f"{dag_id} ended as {state}")
    return run_id


def of_the_catalogue(camera: Camera, client: AirflowClient) -> None:
    """Ask about 24 packages and then about 48: half of the third shard is answered already."""
    client.unpause(CATALOGUE)
    first, second = (run(client, CATALOGUE, rows=rows) for rows in (24, 48))
    shards = page_of(CATALOGUE, second, "tasks/catalogue.complete/mapped")
    camera.open(shards, height=700, until="shard 0004")
    camera.person.click("//button[@data-testid='expand-all-button']")
    # Opened groups stay open; a picture taken now would show one that turns its arrow.
    camera.open(f"{shards}?sort=map_index", height=700, until="merge")
    camera.take("shards", until="shard 0004")
    camera.open(f"{shards}/2", height=470, until="10 of 10 rows done")
    camera.person.click("//button[@aria-label='Press f for fullscreen']")
    camera.person.find("//*[@role='dialog']")
    camera.take("task-log", until="10 of 10 rows done")
    shard = page_of(CATALOGUE, first, "tasks/catalogue.complete/mapped/1")
    camera.open(shard, height=640, until="10 of 10 rows done")
    camera.person.click("//button[@aria-label='Press shift+c to clear']")
    camera.take("clear-shard", until="Affected Tasks: 2")


def of_the_form(camera: Camera) -> None:
    """Open the form of the nightly DAG."""
    camera.open(f"/dags/{TICKETS}", height=1130, until="Latest Dag Version")
    camera.person.click("//button[normalize-space()='Trigger']")
    camera.take("trigger-form", until="Only count rows")


def of_the_tickets(camera: Camera, client: AirflowClient) -> None:
    """Run the nightly DAG against a test server, which filters one ticket."""
    with ScriptedServer() as server:
        server.script(Rule(contains="Cannot log in", status=400, body=FILTERED), Rule(answer=TICKET))
        prices = {"*": {"input_per_mtok": 0.15, "output_per_mtok": 0.6}}
        client.put_connection("llm_default", conn_type="llm", host=server.base_url, extra={"prices": prices})
        client.unpause(TICKETS)
        # Unpaused, it also labels yesterday, by its schedule.
        day = datetime.now(UTC).date() - timedelta(days=2)
        run_id = run(client, TICKETS, shard_tokens=400, date=day.isoformat())
    camera.open(
        page_of(TICKETS, run_id, "tasks/label.complete/mapped/0/details"),
        height=660,
        until="Run summary",
    )
    camera.person.follow("//a[normalize-space()='Run summary']")
    camera.person.find("//body[@data-shown='success']")
    camera.take("run-page", until="Shards that have ended")


def main() -> None:
    """Make all pictures anew."""
    if LAKE.exists():
        raise SystemExit(f"{LAKE} is there: the pictures need a folder of their own")
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, LAKE, ignore_errors=True)
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model = stack.enter_context(ModelServer(home / "model")).endpoint
        env = {"AIRFLOW__LLM_EXAMPLES__DATA": LAKE.as_uri(), "AIRFLOW__LLM_EXAMPLES__MODEL": model.model}
        airflow = stack.enter_context(LocalAirflow(home / "airflow", default_dags(), env=env))
        client = stack.enter_context(airflow.client())
        camera = Camera(stack.enter_context(browser()), airflow.url)
        write_sample_tickets(LAKE / "tickets")
        prepare_airflow(client, model)
        for dag_id in (CATALOGUE, TICKETS):
            client.wait_for_dag(dag_id)
        of_the_catalogue(camera, client)
        of_the_form(camera)
        of_the_tickets(camera, client)


if __name__ == "__main__":
    main()
