from __future__ import annotations

import os
import subprocess
import sys

import pytest

SAY = "import os, pyarrow; print(pyarrow.default_memory_pool().backend_name, 'ARROW_DEFAULT_MEMORY_POOL' in os.environ)"
#: Says how many of two large blocks are apart from the heap, after one was freed from which the allocator learns.
APART = """
import ctypes, pyarrow
names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
Info = type("Info", (ctypes.Structure,), {"_fields_": [(name, ctypes.c_int) for name in names]})
mallinfo = ctypes.CDLL(None).mallinfo
mallinfo.restype = Info
pyarrow.allocate_buffer(16 << 20)
before = mallinfo().hblks
blocks = [pyarrow.allocate_buffer(4 << 20) for _ in range(2)]
print(mallinfo().hblks - before)
"""


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


if sys.platform == "linux":

    class TestGnuAllocator:
        def test_large_blocks_are_given_back_by_themselves(self) -> None:
            assert said(f"from airflow_llm_provider import jobs\n{APART}").splitlines()[0] == "2"

        def test_whoever_sets_a_threshold_has_their_say(self) -> None:
            code = f"from airflow_llm_provider import jobs\n{APART}"
            assert said(code, MALLOC_MMAP_THRESHOLD_=str(32 << 20)).splitlines()[0] == "0"
