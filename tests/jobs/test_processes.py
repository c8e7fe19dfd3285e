"""Shards in processes of their own, with a real file and a real Redis between them."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import redis

from airflow_llm_provider.dataset.files.layout import Layout
from airflow_llm_provider.dataset.outcomes.journal import read_journal
from airflow_llm_provider.engine.budget.spent import Spent
from airflow_llm_provider.engine.limits.account import AccountLimiter
from airflow_llm_provider.errors import LLMBudgetError, LLMRetryableError
from airflow_llm_provider.jobs import Account, CompleteOptions, ShardRun
from airflow_llm_provider.limiters.books.file import FileBook
from airflow_llm_provider.limiters.redis import RedisBackend
from airflow_llm_provider.spec import CompletionSpec
from airflow_llm_provider.testing.scripted_client import ScriptedClient
from airflow_llm_provider.testing.sender import most_in_a_window
from tests.valkey import Valkey

SHARD = Path(__file__).with_name("shard_process.py")
WINDOW = 2.0
#: A hundred in every window.
LIMITS = {"requests_per_minute": 3000, "window": WINDOW, "auto": False}


def start(reference, limiter_url, **more):
    told = {"reference": reference.to_json(), "limits": LIMITS, "limiter_url": limiter_url, **more}
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
        with Valkey() as server, ThreadPoolExecutor(2) as pool:

            def complete(reference, client):
                account = Account(name="shared", client=lambda _: client, key="key", limits=LIMITS)
                options = CompleteOptions(concurrency=8, limiter_url=server.connection_url)
                return ShardRun(reference, accounts=[account], options=options).run()

            states = list(pool.map(complete, references, clients))
        assert [state.rows_by_status for state in states] == [{"success": 120}] * 2
        sent = [(at, 1) for at in sorted(call.started for client in clients for call in client.calls)]
        assert most_in_a_window(sent, WINDOW) <= 115


class TestKilledProcesses:
    def test_B7_I7_everything_in_the_journal_is_in_the_budgets_book_of_the_next_try(self, job, tmp_path):
        job.spec = CompletionSpec(
            model="gpt-4o-mini", prompt="{{ text }}", temperature=0, max_output_tokens=10
        )
        job.write([f"row {n}" for n in range(120)])
        reference, _ = job.split(max_rows_per_shard=90).references
        budget = {"limiter_url": f"file://{tmp_path}/limits", "max_tokens_total": 10_000}
        layout, _ = Layout.of_plan(reference.plan)
        for _ in range(4):
            # The last answers come in within the tenth of a second after which the book hears of them.
            killed = start(reference, **budget, killed_at=20)
            killed.communicate(timeout=60)
            assert killed.returncode == -signal.SIGKILL
        in_journal = sum(
            spent.tokens
            for spent in read_journal(layout, reference.shard_id).spent(unsaid=lambda _: Spent()).values()
        )
        assert in_journal >= 4 * 8 * 15
        process = start(reference, **budget)
        state = json.loads(process.communicate(timeout=60)[0])["state"]
        assert state["rows_by_status"] == {"success": 90}
        assert state["reused"] * 15 == in_journal
        [book] = (tmp_path / "limits").glob("*.book")
        assert asyncio.run(FileBook(book).raise_to(Spent())).spent.tokens == 90 * 15


class TestBudgetInRedis:
    """Requests take 15 tokens, and may take some 25."""

    CAP = 900

    def prepare(self, job):
        job.spec = CompletionSpec(
            model="gpt-4o-mini", prompt="{{ text }}", temperature=0, max_output_tokens=10
        )
        job.write([f"row {n}" for n in range(120)])
        return job.split(max_rows_per_shard=40).references

    def complete(self, reference, client, url, cap):
        account = Account(name="shared", client=lambda _: client, key="key")
        options = CompleteOptions(concurrency=4, limiter_url=url, max_tokens_total=cap, timeout=5)
        run = ShardRun(reference, accounts=[account], options=options)
        try:
            run.run()
        except (LLMBudgetError, LLMRetryableError) as error:
            return run.state, error
        return run.state, None

    def test_B7_holds_for_all_who_spend_at_the_same_time_and_is_used_up(self, job):
        references = self.prepare(job)
        clients = [ScriptedClient(latency=0.02) for _ in references]
        with Valkey() as server, ThreadPoolExecutor(3) as pool:
            url = [server.connection_url] * 3
            ended = list(pool.map(self.complete, references, clients, url, [self.CAP] * 3))
            spent = sum(state.usage.total_tokens for state, _ in ended)
            assert self.CAP - 30 <= spent <= self.CAP
            assert any(isinstance(error, LLMBudgetError) for _, error in ended)
            more = [self.complete(reference, ScriptedClient(), url[0], 2500) for reference in references]
        assert [error for _, error in more] == [None] * 3
        assert sum(state.reused for state, _ in more) == sum(len(client.calls) for client in clients)

    def test_I7_a_book_that_is_lost_halfway_ends_the_try_and_the_next_counts_what_was_paid(self, job):
        reference, *_ = self.prepare(job)
        with Valkey() as server:
            url = server.connection_url

            def lose_the_book_after_ten(call):
                if call.number == 9:
                    with redis.Redis.from_url(url) as client:
                        client.delete(*client.keys("airflow-llm-book:*"))
                return "yes"

            first, second = (
                ScriptedClient(lose_the_book_after_ten, latency=0.02),
                ScriptedClient(latency=0.02),
            )
            state, error = self.complete(reference, first, url, 600)
            assert isinstance(error, LLMRetryableError)
            assert "Run again" in str(error)
            _, error = self.complete(reference, second, url, 600)
        assert isinstance(error, LLMBudgetError)
        assert 10 <= state.rows_by_status["success"] < 40
        assert 30 <= len(first.calls) + len(second.calls) <= 600 // 15

    def test_I7_what_is_in_flight_when_the_book_is_lost_counts_when_it_has_come_in(self, job):
        first, second, _ = self.prepare(job)
        in_flight, counted_anew = threading.Event(), threading.Event()

        def wait_in_flight(call):
            if call.number == 3:
                in_flight.set()
                assert counted_anew.wait(60)
            return "yes"

        slow, quick = ScriptedClient(wait_in_flight), ScriptedClient(latency=0.02)
        with Valkey() as server, ThreadPoolExecutor(1) as pool:
            url = server.connection_url
            waiting = pool.submit(self.complete, first, slow, url, 10_000)
            assert in_flight.wait(60)
            with redis.Redis.from_url(url) as client:
                [book] = client.keys("airflow-llm-book:*")
                client.delete(book)
                state, error = self.complete(second, quick, url, 10_000)
                counted_anew.set()
                interrupted, lost = waiting.result()
                told = int(client.hget(book, "tokens"))
        assert (error, state.rows_by_status) == (None, {"success": 40})
        assert "does not know this try any more" in str(lost)
        assert interrupted.rows_by_status["success"] >= 1
        assert told == 15 * (40 + interrupted.rows_by_status["success"])


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

        server = Valkey(tmp_path)
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
        with Valkey(tmp_path) as server:
            state = asyncio.run(complete(server, client))
        assert (state.reused, len(client.calls)) == (5, 15)
