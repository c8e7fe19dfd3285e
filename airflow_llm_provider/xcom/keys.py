"""XCom keys."""

from __future__ import annotations

#: The shard state that a task pushes before it raises.
SHARD_STATE_KEY = "shard_state"
#: The run's summary, which ``merge`` also pushes when it fails after writing the output.
SUMMARY_KEY = "run_summary"
#: The plan's URI, which ``split`` leaves there: also when there are no shards.
PLAN_KEY = "plan"
#: The id of the list that the task that lists input files leaves there.
LISTING_KEY = "listing"
