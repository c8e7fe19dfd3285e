"""A run in a process of its own: ``python lease_process.py JSON`` prints the error that ended it, or the requests."""

import json
import sys
from pathlib import Path

from airflow_llm_provider.clients.openai import OpenAIClient
from airflow_llm_provider.dataset.leases.lease_record import Owner
from airflow_llm_provider.dataset.leases.lease_terms import LeaseTerms
from airflow_llm_provider.engine.clock import SystemClock
from airflow_llm_provider.errors import LLMError
from airflow_llm_provider.jobs import Account, CompleteOptions, ShardRun
from airflow_llm_provider.jobs.claim import Claimant
from airflow_llm_provider.xcom import ShardReference


class SharedClock(SystemClock):
    """The system's, ahead of it by as many seconds as a file has bytes: who appends some lets time pass for all."""

    def __init__(self, file):
        self.file = Path(file)

    def time(self):
        return super().time() + self.file.stat().st_size

    def monotonic(self):
        return super().monotonic() + self.file.stat().st_size


def main(told):
    run = ShardRun(
        ShardReference.from_json(told["reference"]),
        accounts=[
            Account(
                name="one",
                client=lambda most: OpenAIClient(base_url=told["base_url"], api_key="k", concurrency=most),
            )
        ],
        options=CompleteOptions(concurrency=told["concurrency"], limiter_url="memory://"),
        claimant=Claimant(
            owner=Owner(run="run scheduled__1 of DAG nightly", task="task ask.complete, map index 0, try 1"),
            terms=LeaseTerms(clock=SharedClock(told["clock"])),
        ),
    )
    try:
        run.run()
        error = None
    except LLMError as ended:
        error = f"{type(ended).__name__}: {ended}"
    sys.stdout.write(json.dumps({"error": error, "requests": run.state.requests}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
