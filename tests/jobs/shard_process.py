"""One shard in a process of its own: ``python shard_process.py JSON`` prints when it sent what, and the state, unless it kills itself."""

import json
import os
import signal
import sys

from airflow_llm_provider.jobs import Account, CompleteOptions, ShardRun
from airflow_llm_provider.testing.scripted_client import ScriptedClient
from airflow_llm_provider.xcom import ShardReference


def main(told):
    def answer(call):
        if call.number == told.get("killed_at"):
            os.kill(os.getpid(), signal.SIGKILL)
        return "yes"

    client = ScriptedClient(answer, latency=0.02)
    run = ShardRun(
        ShardReference.from_json(told["reference"]),
        accounts=[Account(name="shared", client=lambda _: client, key="key", limits=told["limits"])],
        options=CompleteOptions(
            concurrency=8,
            limiter_url=told["limiter_url"],
            max_tokens_total=told.get("max_tokens_total"),
            adaptive=False,
        ),
    )
    state = run.run().to_json()
    sys.stdout.write(json.dumps({"sent": [call.started for call in client.calls], "state": state}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
