"""The page of a run in a real browser, in front of an Airflow that does not always answer."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import airflow_llm_provider.plugins
from tests.system.browser import browser

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.system.browser import Browser

PAGE = Path(airflow_llm_provider.plugins.__file__).with_name("page")
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
#: Keeps the lengths of pauses, and makes none.
NO_PAUSES = """
window.pauses = [];
const real = window.setTimeout;
window.setTimeout = (then, ms) => { window.pauses.push(ms); return real(then, 0); };
"""
#: What the page says of its trouble, kept each time it changes.
TOLD = """
window.told = [];
addEventListener("DOMContentLoaded", () => new MutationObserver(() => {
  window.told.push(document.getElementById("trouble").textContent);
}).observe(document.getElementById("trouble"), { childList: true }));
"""


class Answers(ThreadingHTTPServer):
    """The page's files, and a REST API that gives one status after the other to who asks for the run.

    :param statuses: of the answers; 0: none. After the last one the run has ended.
    """

    daemon_threads = True

    def __init__(self, statuses: list[int]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.statuses = statuses

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/llm/?dag_id=nightly&run_id=r"


class Handler(BaseHTTPRequestHandler):
    server: Answers

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path.startswith("/llm/"):
            file = PAGE / (path.removeprefix("/llm/") or "index.html")
            self.answer(200, file.read_bytes(), TYPES[file.suffix])
        elif path.endswith("/xcomEntries"):
            self.answer(200, {"xcom_entries": [], "total_entries": 0})
        else:
            status = self.server.statuses.pop(0) if self.server.statuses else None
            state = "success" if status is None else "running"
            if status == 0:
                self.close_connection = True
                return
            self.answer(
                status or 200, {"dag_id": "nightly", "dag_run_id": "r", "state": state, "run_after": None}
            )

    def answer(self, status: int, body: Any, kind: str = "application/json") -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Keep the test's output clean."""


@pytest.fixture(scope="module")
def person() -> Iterator[Browser]:
    with browser() as found:
        for script in (NO_PAUSES, TOLD):
            found.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": script})
        yield found


def seen(person: Browser, statuses: list[int], until: str) -> tuple[list[int], list[str]]:
    """Open the page, wait for an element, and return the pauses that the page made and what it told."""
    with Answers(statuses) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        person.driver.get(server.url)
        person.find(until)
        server.shutdown()
    return person.driver.execute_script("return [window.pauses, window.told]")


ENDED = "//body[@data-shown='success']"


class TestFollowing:
    def test_goes_on_after_answers_that_say_nothing(self, person: Browser) -> None:
        pauses, told = seen(person, [200, 503, 500, 0, 200, 502], ENDED)
        assert pauses == [5000, 10000, 20000, 40000, 5000, 10000]
        again = "This is what it said last; it is asked again in"
        assert told == [
            f"Airflow's API answered 503. {again} 10 s.",
            f"Airflow's API answered 500. {again} 20 s.",
            f"Airflow could not be reached. {again} 40 s.",
            "",
            f"Airflow's API answered 502. {again} 10 s.",
            "",
        ]

    def test_asks_every_minute_at_least(self, person: Browser) -> None:
        pauses, _ = seen(person, [503] * 6, ENDED)
        assert pauses == [10000, 20000, 40000, 60000, 60000, 60000]

    @pytest.mark.parametrize(
        ("status", "said"), [(403, "You may not read"), (404, "no such run"), (422, "answered 422")]
    )
    def test_ends_where_asking_again_would_not_help(self, person: Browser, status: int, said: str) -> None:
        pauses, told = seen(person, [200, status], f"//p[@role='alert' and contains(., '{said}')]")
        assert pauses == [5000]
        assert said in told[-1]
