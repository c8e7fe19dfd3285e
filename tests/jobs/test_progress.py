"""The progress line."""

from __future__ import annotations

import logging

from airflow_llm_provider.engine.events import RowDone
from airflow_llm_provider.engine.status import RowStatus
from airflow_llm_provider.engine.usage import Usage
from airflow_llm_provider.jobs import ShardRun
from airflow_llm_provider.jobs.completing.progress import ProgressLog
from airflow_llm_provider.testing.clock import ManualClock


def _done(index, status=RowStatus.SUCCESS):
    return RowDone(index=index, status=status, code=None, attempts=1, usage=Usage(), cost_usd=None)


class TestProgressLog:
    def test_I8_tells_done_ok_failed_reused_and_time_left(self, caplog):
        caplog.set_level(logging.INFO)
        clock = ManualClock()
        progress = ProgressLog(
            "shard 0002", rows=100, settled=20, reused=18, clock=clock, log=logging.getLogger("progress")
        )
        for index in range(9):
            progress.on_event(_done(index))
        progress.on_event(_done(9, RowStatus.ERROR))
        clock.jump(10)
        progress.tell()
        [line] = caplog.messages
        assert (
            line
            == "shard 0002: 30 of 100 rows done (9 ok, 1 without an answer, 18 reused), 0 tokens/s, 1 min 10 s left"
        )

    def test_I8_a_long_shard_shows_lines_while_it_runs(self, job, caplog):
        caplog.set_level(logging.INFO)
        job.write([f"row {n}" for n in range(200)])
        job.run(complete={"concurrency": 1, "progress_interval": 5.0})
        lines = [line for line in caplog.messages if "rows done" in line]
        assert len(lines) >= 4
        assert "200 of 200 rows done" in lines[-1]


class TestObserver:
    def test_hears_of_every_event_and_costs_no_answer_when_it_raises(self, job, caplog):
        job.write(["one", "two", "three"])
        heard = []

        class Broken:
            def on_event(self, event):
                heard.append(type(event).__name__)
                raise RuntimeError("not my day")

        [reference] = job.split().references
        state = ShardRun(reference, client=job.client(), observer=Broken(), clock=job.clock).run()
        assert state.rows_by_status == {"success": 3}
        assert [heard.count(name) for name in ("AttemptStarted", "AttemptFinished", "RowDone")] == [3, 3, 3]
        assert "RuntimeError" in caplog.text
        assert "not my day" not in caplog.text
