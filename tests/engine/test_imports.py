"""The engine is standard library only."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
before = set(sys.modules)
import airflow_llm_provider.engine.runner
for name in sorted(set(sys.modules) - before):
    path = getattr(sys.modules[name], "__file__", None) or ""
    if "site-packages" in path:
        print(name)
"""


class TestImports:
    def test_the_engine_loads_nothing_that_has_to_be_installed(self):
        done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
        assert done.stdout.split() == []
