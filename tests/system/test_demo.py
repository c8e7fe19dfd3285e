"""`make demo` as a person runs it: the small real model, real Airflow, and nothing left behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psutil
import pytest

from airflow_llm_provider.local.demo.home import Home
from airflow_llm_provider.local.demo.model_server import ModelServer
from airflow_llm_provider.local.services.service_set import ServiceSet

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.system, pytest.mark.timeout(1500)]


@contextmanager
def demo(home: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run the demo in a process of its own, as `make` does."""
    command = [sys.executable, "-m", "airflow_llm_provider.local", "demo", "--home", str(home), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def running(home: Path) -> list[psutil.Process]:
    """Every process that a demo in this folder started."""
    folders = Home(home)
    return [
        process
        for folder in (folders.airflow, folders.model)
        for process in ServiceSet(folder / "run").processes()
    ]


class TestDemo:
    def test_every_row_comes_out_and_the_last_line_says_so(self, tmp_path: Path) -> None:
        home = tmp_path / "my demo"
        with demo(home, "--rows", "5") as process:
            output, _ = process.communicate(timeout=1200)

        assert process.returncode == 0, output
        last = json.loads(output.splitlines()[-1])
        assert last.pop("seconds") > 0
        assert last == {
            "demo": "ok",
            "rows": 5,
            "succeeded": 5,
            "shards": 1,
            "requests": 5,
            "output": str(home / "data" / "catalogue"),
        }
        assert (home / "data" / "catalogue" / "_manifest.json").exists()
        # The table and the places. They do not wait for Airflow's end, and nothing is said of that.
        assert "category" in output
        assert str(home / "airflow" / "logs") in output
        assert "Stopping" not in output
        assert running(home) == []

    def test_ctrl_c_stops_everything(self, tmp_path: Path) -> None:
        with demo(tmp_path / "demo") as process:
            assert process.stdout is not None
            lines = iter(process.stdout.readline, "")
            assert any("counting tokens" in line or "asking the model" in line for line in lines)
            started = running(tmp_path / "demo")
            assert len(started) > 6

            process.send_signal(signal.SIGINT)
            output = process.stdout.read()
            assert process.wait(timeout=300) == 130

        assert json.loads(output.splitlines()[-1])["demo"] == "failed"
        _gone, alive = psutil.wait_procs(started, timeout=60)
        assert alive == []


class TestModelServer:
    def test_it_serves_the_model_on_loopback_and_stops(self, tmp_path: Path) -> None:
        with ModelServer(tmp_path / "model home") as server:
            assert server.base_url.startswith("http://127.0.0.1:")
            processes = ServiceSet(tmp_path / "model home" / "run").processes()
            assert len(processes) == 2
        assert not server.running
        assert not any(process.is_running() for process in processes)
