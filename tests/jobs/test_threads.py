"""However a shard ends, no thread of its own outlives it."""

from __future__ import annotations

import asyncio
import threading

import pytest

from airflow_llm_provider.dataset.outcomes import results
from airflow_llm_provider.engine.call import CallError, FailureKind
from airflow_llm_provider.errors import LLMTerminalError

#: Of these rows, a row group is on its way to the results while the last are still asked.
ROWS = 900
QUOTA = CallError(FailureKind.QUOTA, "insufficient_quota", "no credit left", status_code=429)


@pytest.fixture
def compressing():
    """Return the threads that compress results and began meanwhile."""

    def own() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name.startswith("llm-results")}

    before = own()
    return lambda: own() - before


@pytest.fixture
def reference(job):
    job.write([f"row {n}" for n in range(ROWS)])
    [reference] = job.split().references
    return reference


class TestThreadThatCompressesResults:
    # What is raised is held, and with it every frame: nothing is left to the garbage collection.

    def test_ends_with_a_shard_that_fails(self, job, reference, compressing):
        seen = []

        def answer(call):
            if call.number < ROWS - 20:
                return "yes"
            seen.append(compressing())
            return QUOTA

        job.answer = answer
        with pytest.raises(LLMTerminalError) as held:
            job.shard_run(reference).run()
        assert seen[0]
        assert not compressing()
        del held

    def test_ends_with_a_shard_that_is_cancelled(self, job, reference, compressing):
        async def cancelled():
            seen = []
            asking = asyncio.ensure_future(run.ask())

            def answer(call):
                if call.number == ROWS - 20:
                    seen.append(compressing())
                    asking.cancel()
                return "yes"

            job.answer = answer
            with pytest.raises(asyncio.CancelledError) as held:
                await asking
            return seen, held

        run = job.shard_run(reference)
        seen, held = asyncio.run(cancelled())
        assert seen[0]
        assert not compressing()
        del held

    def test_ends_with_a_shard_whose_last_rows_cannot_be_encoded(
        self, job, reference, compressing, monkeypatch
    ):
        def answer(call):
            if call.number == ROWS - 20:
                monkeypatch.setattr(results, "_row", broken)
            return "yes"

        def broken(*_):
            raise ValueError("no such row")

        job.answer = answer
        with pytest.raises(ValueError, match="no such row") as held:
            job.shard_run(reference).run()
        assert not compressing()
        del held
