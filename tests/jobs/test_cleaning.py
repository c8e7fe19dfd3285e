"""A merge deletes what no run has used for long, and says so."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from airflow_llm_provider.errors import LLMInputError
from airflow_llm_provider.jobs import merge
from airflow_llm_provider.jobs.options import KEEP_DAYS
from airflow_llm_provider.operators.merge import DEFAULT_KEEP_DAYS

DAY = 86_400


def grow_old(job: Any, days: float) -> None:
    when = job.clock.time() - days * DAY
    for path in Path(job.destination, "_llm").rglob("*.*"):
        os.utime(path, (when, when))


@pytest.fixture
def two_runs(job: Any) -> Any:
    """A job whose first run nobody needs, and whose second one has just been split and answered."""
    job.write(["a", "b"])
    job.run()
    grow_old(job, 30.1)
    job.write(["c"])
    return job


class TestMerge:
    def test_deletes_after_thirty_days_and_says_what(self, two_runs: Any, caplog: Any) -> None:
        caplog.set_level("INFO")
        two_runs.run()
        (line,) = [record.message for record in caplog.records if record.message.startswith("Deleted")]
        assert line.startswith(
            "Deleted what no run has used for 30 days: 1 plan, input rows in 1 file and answers in 1 file, 0.0 MB"
        )
        assert len(list(Path(two_runs.destination, "_llm", "results").iterdir())) == 1

    def test_deletes_nothing_earlier(self, job: Any, caplog: Any) -> None:
        caplog.set_level("INFO")
        job.write(["a", "b"])
        job.run()
        grow_old(job, 29.9)
        job.write(["c"])
        job.run()
        assert "Deleted" not in caplog.text
        assert len(list(Path(job.destination, "_llm", "results").iterdir())) == 2

    def test_keeps_everything_on_request(self, two_runs: Any) -> None:
        result = two_runs.split()
        two_runs.shard_run(result.references[0]).run()
        merge(result.plan_uri, keep_days=None, clock=two_runs.clock)
        assert len(list(Path(two_runs.destination, "_llm", "results").iterdir())) == 2
        merge(result.plan_uri, keep_days=1, clock=two_runs.clock)
        assert len(list(Path(two_runs.destination, "_llm", "results").iterdir())) == 1

    def test_answers_of_the_last_days_are_never_paid_for_again(self, job: Any) -> None:
        job.write(["a", "b"])
        job.run()
        grow_old(job, 29)
        job.write(["c"])
        job.run()
        job.requests()
        job.write(["a", "b"])
        job.run()
        assert job.requests() == 0

    def test_a_trial_deletes_nothing_as_the_whole_run_is_to_come(self, job: Any) -> None:
        job.write(["a", "b", "c"])
        job.run(max_rows_per_shard=1)
        grow_old(job, 31)
        assert job.run(limit=1, max_rows_per_shard=1).rows == 1
        job.requests()
        assert job.run(max_rows_per_shard=1).rows == 3
        assert job.requests() == 0

    def test_succeeds_when_nothing_can_be_deleted(self, two_runs: Any, caplog: Any) -> None:
        Path(two_runs.destination, "_llm", "plans", "recent.json").write_text("{}")
        assert two_runs.run().rows == 1
        assert "could not be deleted, and is tried again next time: the plan" in caplog.text

    def test_refuses_no_days(self, job: Any) -> None:
        with pytest.raises(LLMInputError, match="keep_days is 0"):
            merge("x", keep_days=0)

    def test_keeps_as_long_in_airflow(self) -> None:
        assert DEFAULT_KEEP_DAYS == KEEP_DAYS
