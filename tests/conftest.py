"""Keep every test away from the Airflow of whoever runs them."""

from __future__ import annotations

import os
import tempfile

# Before anything imports Airflow, which reads these once.
_home = tempfile.TemporaryDirectory(prefix="airflow-llm-tests-", ignore_cleanup_errors=True)
os.environ["AIRFLOW_HOME"] = _home.name
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
for _name in [
    name for name in os.environ if name.startswith(("AIRFLOW_CONN_", "AIRFLOW__DATABASE__", "OPENAI_"))
]:
    del os.environ[_name]
