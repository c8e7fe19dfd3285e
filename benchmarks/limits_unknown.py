"""A server that refuses above 100 requests a second and has told nobody: what finding out costs."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

from airflow_llm_provider.testing.scripted_server import AccountLimits, EndpointOptions
from benchmarks import child, tickets
from benchmarks.report import Report, options, rounded

if TYPE_CHECKING:
    from collections.abc import Sequence

CONCURRENCY = 64
LATENCY = 0.05
PER_SECOND = 100


def ours(*, rows: int, base_url: str) -> dict[str, Any]:
    """Run the job once, in this process."""
    tickets.warm_up(rows)
    with child.effort() as taken:
        summary = tickets.run(rows, base_url=base_url, api_key="none", concurrency=CONCURRENCY)
    return {"seconds": taken.seconds, "succeeded": summary.rows_by_status.get("success", 0)}


def observe(target: str, rows: int, **arguments: Any) -> dict[str, Any]:
    """Run one client against a server of its own and tell what both saw."""
    limits = AccountLimits(requests=PER_SECOND, window=1.0, announce=False, retry_after="1")
    with child.serve(EndpointOptions(latency=LATENCY, limits=limits, full_records=False)) as server:
        found = child.call(target, rows=rows, base_url=server.base_url, **arguments)
        stats = server.stats()
    return {
        "seconds": found["seconds"],
        "failed": rows - found["succeeded"],
        "refused": stats["by_status"].get("429", 0),
        "requests": stats["requests"],
    }


def _median(runs: Sequence[dict[str, Any]]) -> dict[str, float]:
    return {name: rounded(median(run[name] for run in runs)) for name in runs[0]}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    chosen = options("limits_unknown", __doc__, arguments, runs=3)
    rows, runs = (110, 1) if chosen.quick else (1_000, chosen.runs)
    mine, naive = [], []
    for _ in range(runs):
        mine.append(observe("benchmarks.limits_unknown:ours", rows))
        naive.append(observe("benchmarks.bare_loop:measure", rows, concurrency=CONCURRENCY, attempts=6))
    found = _median(mine)
    Report(
        name="limits-unknown",
        value=found["seconds"],
        unit="seconds",
        target=f"0 failed, ≤ 11 s (ideal {rows / PER_SECOND:g}), ≤ 13 refused",
        ok=max(run["failed"] for run in mine) == 0 and found["seconds"] <= 11 and found["refused"] <= 13,
        baseline={
            "what": "aiohttp loop of which each of 64 workers waits as long as the server asks, 6 attempts a row",
            **_median(naive),
        },
        details={"rows": rows, **found, "runs": mine},
    ).print()


if __name__ == "__main__":
    main()
