"""One look at all runs for everyone who waits for one: what each of them asks, the API server lacks for the tasks."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_llm_provider.local import AirflowClient

#: Seconds for which one look is good.
POLL = 2.0


class Watch:
    """Knows which runs of one Airflow have not ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._looked = -POLL
        self._active: frozenset[tuple[str, str]] = frozenset()

    def may_have_ended(self, client: AirflowClient, dag_id: str, run_id: str) -> bool:
        """Tell whether it is worth asking for a run's state."""
        with self._lock:
            if time.monotonic() - self._looked >= POLL:
                found = client.call("GET", "/dags/~/dagRuns", state=["queued", "running"], limit=100)
                self._active = frozenset((run["dag_id"], run["dag_run_id"]) for run in found["dag_runs"])
                self._looked = time.monotonic()
            return (dag_id, run_id) not in self._active


#: By the address of the Airflow.
WATCHES: defaultdict[str, Watch] = defaultdict(Watch)
