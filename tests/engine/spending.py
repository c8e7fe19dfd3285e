"""A budget, requests and their answers, for the tests of who spends it."""

from __future__ import annotations

import asyncio
import functools
import itertools

from airflow_llm_provider.engine.budget.book import BookAwayError, Holder
from airflow_llm_provider.engine.budget.config import BudgetConfig
from airflow_llm_provider.engine.budget.gate import BudgetGate
from airflow_llm_provider.engine.budget.memory_book import MemoryBook
from airflow_llm_provider.engine.budget.spent import Spent
from airflow_llm_provider.engine.call import Request
from airflow_llm_provider.engine.events import AttemptFinished
from airflow_llm_provider.engine.gate import PASS
from airflow_llm_provider.engine.usage import Usage
from airflow_llm_provider.engine.verdict import Verdict
from airflow_llm_provider.testing.clock import ManualClock

#: Long enough for what is told in the background.
A_MOMENT = 0.5

_numbers = itertools.count()


def in_loop(test):
    """Run a test in a loop of its own."""

    @functools.wraps(test)
    def start(self, *arguments, **more):
        asyncio.run(test(self, *arguments, **more))

    return start


def request(index=0, *, prompt=100, cap=900):
    return Request(index=index, body={"model": "m"}, prompt_tokens=prompt, max_output_tokens=cap)


def answered(tokens, *, cost=None):
    usage = Usage(prompt_tokens=100, completion_tokens=tokens - 100)
    return AttemptFinished(index=0, attempt=1, verdict=Verdict.SUCCESS, usage=usage, cost_usd=cost)


def failed(kind):
    return AttemptFinished(index=0, attempt=1, verdict=Verdict.DROPPED, kind=kind)


def per_token(model, usage):
    return usage.total_tokens / 1000


async def gate_on(
    book=None, *, on_share=None, price=per_token, patience=0.0, holder=None, clock=None, **config
):
    gate = BudgetGate(
        BudgetConfig(**config),
        book or MemoryBook(),
        clock=clock or ManualClock(),
        price=price,
        holder=Holder(name=holder or f"holder {next(_numbers)}", session=f"session {next(_numbers)}"),
        patience=patience,
        on_share=on_share,
    )
    await gate.open(Spent)
    return gate


async def passes(gate, *indexes, now=0.0):
    """Admit requests; tell whether all of them passed."""
    return [await gate.admit(request(index), now=now) for index in indexes] == [PASS] * len(indexes)


class LostBook(MemoryBook):
    """A book that is away at times, and counts what it is told."""

    away = None
    statements = 0

    async def state(self, holder, statement, *, limit):
        self.statements += 1
        if self.away == "before":
            raise BookAwayError("away")
        answer = await super().state(holder, statement, limit=limit)
        if self.away == "after":
            raise BookAwayError("away")
        return answer
