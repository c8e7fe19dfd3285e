from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import httpx
import pytest

from airflow_llm_provider.links.run_page import PAGE_PREFIX
from airflow_llm_provider.plugins.run_page import LLMRunPlugin, run_page

if TYPE_CHECKING:
    from pathlib import Path


def fetched(path: str) -> httpx.Response:
    """Ask the application as the API server does, with the path as it is on the wire."""

    async def get() -> httpx.Response:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(run_page()), base_url="http://airflow"
        ) as client:
            return await client.send(httpx.Request("GET", httpx.URL(f"http://airflow{path}")))

    return asyncio.run(get())


FILES = ["index.html", "page.css", "page.js", "api.js", "dom.js", "job.js"]


class TestPage:
    def test_is_served_where_the_links_lead(self) -> None:
        [described] = LLMRunPlugin().fastapi_apps
        assert described["url_prefix"] == PAGE_PREFIX
        assert described["app"] is run_page()
        assert "LLM run" in fetched("/").text

    @pytest.mark.parametrize("name", FILES)
    def test_asks_for_nothing_from_elsewhere(self, name: str) -> None:
        answer = fetched(f"/{name}")
        assert answer.status_code == 200
        assert set(re.findall(r"https?://[^\s\"'`]+", answer.text)) <= {"http://www.w3.org/2000/svg"}
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "frame-ancestors 'self'" in answer.headers["content-security-policy"]

    @pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".js")])
    def test_never_reads_what_a_run_says_as_html(self, name: str) -> None:
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", fetched(f"/{name}").text
        )

    @pytest.mark.parametrize(
        "path",
        [
            "/../run_page.py",
            "/%2e%2e/run_page.py",
            "/..%2frun_page.py",
            "/%2e%2e%2f%2e%2e%2fspec.py",
            "//etc/passwd",
            "/%2fetc%2fpasswd",
            "/page.js%00.html",
            "/..\\run_page.py",
        ],
    )
    def test_serves_its_own_files_only(self, path: str) -> None:
        answer = fetched(path)
        assert answer.status_code == 404
        assert "import" not in answer.text
        assert "root:" not in answer.text


class TestCost:
    def test_a_task_that_loads_plugins_pays_for_no_web_framework(self, tmp_path: Path) -> None:
        code = (
            "import sys, airflow.sdk; before = set(sys.modules); import airflow_llm_provider.plugins.run_page; "
            "print(sorted({name.split('.')[0] for name in set(sys.modules) - before} & "
            "{'starlette', 'fastapi', 'pyarrow', 'pandas', 'openai'}))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
        )
        assert done.stdout.strip().endswith("[]")
