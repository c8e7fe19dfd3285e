from __future__ import annotations

from airflow_llm_provider.scheduling.retry_policy import RETRY_POLICIES

#: Airflow before 3.3 has no retry policies to test.
collect_ignore = [] if RETRY_POLICIES else ["test_retry_policy.py"]
