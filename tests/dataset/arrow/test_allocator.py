from __future__ import annotations

import os
import subprocess
import sys

import pytest

SAY = "import os, pyarrow; print(pyarrow.default_memory_pool().backend_name, 'ARROW_DEFAULT_MEMORY_POOL' in os.environ)"
#: Frees a large block, from which the allocator learns, then fills large blocks and keeps small ones between them.
FREED = """
import ctypes, pyarrow as pa
def megabytes():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 1e6
malloc = ctypes.CDLL(None).malloc
malloc.argtypes, malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
pa.allocate_buffer(16 << 20)
before = megabytes()
blocks = []
for _ in range(32):
    blocks.append(pa.allocate_buffer(4 << 20))
    ctypes.memset(blocks[-1].address, 1, blocks[-1].size)
    malloc(4096)
filled = megabytes()
blocks.clear()
print(filled - before > 120, megabytes() - before < 20)
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
        def test_large_blocks_go_back_at_once(self) -> None:
            given, known = said(f"from airflow_llm_provider import jobs\n{FREED}").splitlines()
            assert given == "True True"
            assert known == "system False"

        def test_whoever_sets_a_threshold_has_their_say(self) -> None:
            given, _ = said(
                f"from airflow_llm_provider import jobs\n{FREED}", MALLOC_MMAP_THRESHOLD_=str(32 << 20)
            ).splitlines()
            assert given == "True False"
