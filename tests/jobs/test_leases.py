"""A21, I1: processes of their own that want the rows of one destination at the same time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_llm_provider.clients.openai import OpenAIClient
from airflow_llm_provider.dataset.leases.lease_record import Owner
from airflow_llm_provider.dataset.leases.lease_terms import LeaseTerms
from airflow_llm_provider.errors import LLMBusyError
from airflow_llm_provider.jobs import CompleteOptions, ShardRun, run_dataset, split
from airflow_llm_provider.jobs.claim import Claimant
from airflow_llm_provider.testing.scripted_server import Rule, ScriptedServer
from tests.jobs.lease_process import SharedClock

SCRIPT = Path(__file__).with_name("lease_process.py")
TEXTS = [f"row {n:02d}" for n in range(12)]
IN_FLIGHT = 3
ANSWERED = 4
PERSON = Owner(run="run manual__2 of DAG nightly")


class Scene:
    """A dataset, its plan, a server that holds its answers, and a process that waits for them."""

    def __init__(self, job, server):
        self.job = job
        self.server = server
        self.clock = SharedClock(job.folder / "clock")
        self.clock.file.touch()
        job.write(TEXTS)
        [self.reference] = job.split().references
        # So many requests are answered, the next ones are out until the server is healed.
        server.script(Rule(skip=ANSWERED, held=True))
        told = {
            "reference": self.reference.to_json(),
            "base_url": self.server.base_url,
            "concurrency": IN_FLIGHT,
            "clock": str(self.clock.file),
        }
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), json.dumps(told)], stdout=subprocess.PIPE, text=True
        )

    def wait_for(self, **wanted):
        while {name: self.server.stats()[name] for name in wanted} != wanted:
            assert self.process.poll() is None

    def complete(self):
        """Ask in this process, and return the state."""
        client = OpenAIClient(base_url=self.server.base_url, api_key="k", concurrency=IN_FLIGHT)
        return ShardRun(
            self.reference,
            client=client,
            options=CompleteOptions(concurrency=IN_FLIGHT),
            claimant=Claimant(owner=PERSON, terms=LeaseTerms(clock=self.clock)),
        ).run()

    def heal(self):
        """Let the server answer, and return what it was asked until now."""
        seen = [request.prompt for request in self.server.requests]
        self.server.script()
        return seen

    def end(self):
        return json.loads(self.process.communicate(timeout=60)[0])

    def kill(self):
        self.process.kill()
        self.process.communicate(timeout=60)


@pytest.fixture
def scene(job):
    scenes = []
    with ScriptedServer() as server:

        def begin():
            scenes.append(Scene(job, server))
            scenes[-1].wait_for(answered=ANSWERED, in_flight=IN_FLIGHT)
            return scenes[-1]

        yield begin
        for begun in scenes:
            begun.process.send_signal(signal.SIGCONT)
            begun.kill()


class TestTwoProcesses:
    def test_A21_the_second_run_is_refused_and_each_row_is_asked_once(self, scene, job):
        first = scene()
        # Stopped for a while, so that it does not end before the others have asked.
        os.kill(first.process.pid, signal.SIGSTOP)
        with pytest.raises(LLMBusyError, match="shard 0 of .* in use by run scheduled__1 of DAG nightly"):
            first.complete()
        with pytest.raises(
            LLMBusyError, match="the destination .* in use by run scheduled__1 of DAG nightly"
        ):
            split(job.spec, job.source, job.destination, claimant=Claimant(owner=PERSON))
        with pytest.raises(LLMBusyError, match=f"process {first.process.pid} on host"):
            run_dataset(job.spec, job.source, job.destination, base_url=first.server.base_url)
        before = first.heal()
        os.kill(first.process.pid, signal.SIGCONT)
        assert first.end() == {"error": None, "requests": len(TEXTS)}
        assert sorted(before + [request.prompt for request in first.server.requests]) == TEXTS
        assert first.complete().reused == len(TEXTS)

    def test_I1_A27_after_kill_9_the_next_try_goes_on_at_once(self, scene):
        first = scene()
        first.kill()
        before = first.heal()
        state = first.complete()
        assert (state.reused, state.requests) == (ANSWERED, len(TEXTS) - ANSWERED)
        assert len(before) + state.requests == len(TEXTS) + IN_FLIGHT


class TestStoppedProcess:
    def test_that_wakes_up_after_its_lease_was_taken_over_sends_nothing_more(self, scene, job):
        first = scene()
        os.kill(first.process.pid, signal.SIGSTOP)
        before = first.heal()
        with pytest.raises(LLMBusyError):
            first.complete()
        first.clock.file.write_bytes(bytes(71))
        state = first.complete()
        assert (state.reused, state.requests) == (ANSWERED, len(TEXTS) - ANSWERED)
        results = Path(job.destination, "_llm", "results", f"{first.reference.shard_id}.parquet")
        written = results.read_bytes()
        first.server.script()
        os.kill(first.process.pid, signal.SIGCONT)
        ended = first.end()
        assert ended["error"].startswith("LLMRetryableError: the lease on shard 0 of")
        assert ended["requests"] == len(before) == ANSWERED + IN_FLIGHT
        assert first.server.requests == []
        assert results.read_bytes() == written
