"""A script with ``run_dataset``: ``python dataset_process.py JSON``; what it logs goes to standard error."""

import asyncio
import json
import signal
import sys

from airflow_llm_provider.engine.clock import SystemClock
from airflow_llm_provider.jobs import run_dataset
from airflow_llm_provider.spec import CompletionSpec


class PatientClock(SystemClock):
    """Stands still, so that a grace lasts for as long as a busy machine needs."""

    def monotonic(self):
        return 0.0

    async def sleep(self, seconds):
        await asyncio.Event().wait()


def main(told):
    # As at a terminal: what is started in the background ignores Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if told["handler"]:
        signal.signal(signal.SIGTERM, lambda *_: sys.stderr.write("heard\n"))

    def run():
        run_dataset(
            CompletionSpec(**told["spec"]),
            told["source"],
            told["destination"],
            base_url=told["base_url"],
            concurrency=told["concurrency"],
            limiter_url="memory://",
            clock=SystemClock() if told["handler"] else PatientClock(),
        )

    async def cell():
        run()

    if told["in_a_loop"]:
        # As a notebook does: asyncio.run() would have a handler of its own.
        asyncio.new_event_loop().run_until_complete(cell())
    else:
        run()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
