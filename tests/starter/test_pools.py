"""The pools as code."""

from __future__ import annotations

from airflow_llm_provider.starter.pools import POOL, pools


class TestPools:
    def test_hold_a_shard_of_every_example(self) -> None:
        """With the room that the DAGs of the demo and of the compose file need."""
        assert pools().keys() == {POOL}
        assert pools()[POOL]["slots"] >= 2
        # What waits by deferring has not finished, and goes on.
        assert pools()[POOL]["include_deferred"] is True
