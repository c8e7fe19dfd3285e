from __future__ import annotations

import os
import subprocess
import sys

import pytest

SAY = "import os, pyarrow; print(pyarrow.default_memory_pool().backend_name, 'ARROW_DEFAULT_MEMORY_POOL' in os.environ)"


def said(code: str, **variables: str) -> str:
    known = {name: value for name, value in os.environ.items() if name != "ARROW_DEFAULT_MEMORY_POOL"}
    command = [sys.executable, "-c", f"{code}\n{SAY}"]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=60, env=known | variables
    ).stdout.strip()


class TestArrowMemory:
    @pytest.mark.parametrize("earlier", ["", "import pyarrow\n"])
    def test_jobs_take_memory_from_the_system_and_leave_the_environment_alone(self, earlier: str) -> None:
        assert said(f"{earlier}from airflow_llm_provider import jobs") == "system False"

    def test_the_environment_has_its_say(self) -> None:
        assert (
            said("from airflow_llm_provider import jobs", ARROW_DEFAULT_MEMORY_POOL="mimalloc")
            == "mimalloc True"
        )
