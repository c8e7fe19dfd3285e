"""A rig that runs an engine against a scripted client in virtual time."""

from __future__ import annotations

import asyncio
import random

import pytest

from airflow_llm_provider.engine.call import Judgement, Request
from airflow_llm_provider.engine.config import EngineConfig
from airflow_llm_provider.engine.limiter import CostExceedsLimitError, Reservation, Unlimited
from airflow_llm_provider.engine.retry import RetryConfig
from airflow_llm_provider.engine.runner import Engine
from airflow_llm_provider.engine.status import RowStatus
from airflow_llm_provider.testing.clock import ManualClock
from airflow_llm_provider.testing.scripted_client import ScriptedClient


class RecordingObserver:
    def __init__(self):
        self.events = []

    def on_event(self, event):
        self.events.append(event)

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]


def judge(reply):
    """'bad' may be asked again, 'wrong' may not, everything else is an answer."""
    if reply.text in ("bad", "wrong"):
        return Judgement(
            status=RowStatus.INVALID_OUTPUT, code="invalid_json", message="?", try_again=reply.text == "bad"
        )
    return Judgement(status=RowStatus.SUCCESS, answer=reply.text)


def requests(count):
    return [
        Request(index=index, body={"model": "m", "row": index}, prompt_tokens=20, max_output_tokens=30)
        for index in range(count)
    ]


class OnePerSecond(Unlimited):
    """60 requests per minute, evenly spaced, and a request cannot be larger than 1000 tokens."""

    def __init__(self, clock):
        super().__init__(clock=clock)
        self.clock = clock
        self.next_free = 0.0
        self.settled = []
        self.cancelled = []
        self.halted = []
        self.own = None

    async def reserve(self, cost):
        if cost.tokens > 1000:
            raise CostExceedsLimitError(
                "request_exceeds_tpm", "1500 tokens, 1000 a minute: shorten the prompt"
            )
        now = self.clock.monotonic()
        at = max(self.next_free, now)
        self.next_free = at + 1.0
        return Reservation(cost=cost, wait=at - now)

    async def settle(self, reservation, used):
        self.settled.append((reservation.cost, used))

    async def cancel(self, reservation):
        self.cancelled.append(reservation)

    async def halt(self, kind, *, own=False):
        self.halted.append(kind)
        self.own = own


class Rig:
    """Builds an engine, runs it, and keeps everything that came out."""

    def __init__(self):
        self.clock = ManualClock()
        self.observer = RecordingObserver()
        self.outcomes = []
        self.client = None
        self.engine = None
        self.leftover_tasks = None

    def build(
        self, script=(), *, concurrency=4, retry=None, latency=0.1, then="ok", seed=0, parts=None, **config
    ):
        self.client = ScriptedClient(script, then=then, latency=latency, clock=self.clock)
        config.setdefault("probe_window", 0.0)
        parts = {"judge": judge, "client": self.client, **(parts or {})}
        self.engine = Engine(
            parts.pop("client"),
            parts.pop("judge"),
            config=EngineConfig(concurrency=concurrency, retry=RetryConfig(**(retry or {})), **config),
            clock=self.clock,
            rng=random.Random(seed),
            observer=parts.pop("observer", self.observer),
            **parts,
        )
        return self.engine

    async def arun(self, rows, on_outcome=None, *, total=None, meanwhile=None):
        rows = requests(rows) if isinstance(rows, int) else rows
        other = asyncio.create_task(meanwhile()) if meanwhile is not None else None
        before = asyncio.all_tasks()
        try:
            return await self.engine.run(rows, on_outcome or self.outcomes.append, total=total)
        finally:
            self.leftover_tasks = asyncio.all_tasks() - before
            if other is not None:
                other.cancel()

    def run(self, rows, on_outcome=None, *, total=None, meanwhile=None):
        return asyncio.run(self.arun(rows, on_outcome, total=total, meanwhile=meanwhile))

    @property
    def statuses(self):
        return {outcome.index: outcome.status for outcome in self.outcomes}


@pytest.fixture
def rig():
    return Rig()


@pytest.fixture
def one_per_second(rig):
    """A limiter that spaces requests by a second and refuses large ones."""
    return OnePerSecond(rig.clock)


@pytest.fixture(scope="session")
def new_rig():
    """For property tests, which need a fresh rig per example."""
    return Rig


@pytest.fixture(scope="session")
def make_requests():
    return requests
