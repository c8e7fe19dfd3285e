"""What everything around a request costs: ``run_dataset`` against a bare aiohttp loop with the same bodies.

Counting, shards, rendering, journal, results, Parquet output: all of it is in our time. Not in it is what
happens once in a process (``cold_seconds``): imports, loading vocabulary and prices, done by a run of a few rows before.

The runs share one account, as runs do: the first of each size (``first_ratio``) knows nothing of it and sends its first
request alone; those after it know that it answers.
"""

from __future__ import annotations

from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from airflow_llm_provider.testing.scripted_server import EndpointOptions
from benchmarks import child, tickets
from benchmarks.report import Report, options, rounded

if TYPE_CHECKING:
    from collections.abc import Sequence

CONCURRENCY = 64
LATENCY = 0.05
#: Memory may grow by as much between the two sizes and still count as flat.
_FLAT = 1.15


def ours(*, rows: int, base_url: str, limiter_url: str) -> dict[str, Any]:
    """Run the job once, in this process."""
    cold_seconds = tickets.warm_up(rows)
    before = child.peak_rss_mb()
    # To remove the output again is no part of the job.
    with TemporaryDirectory(prefix="engine-") as folder, child.effort() as taken:
        summary = tickets.run(
            rows,
            folder=folder,
            base_url=base_url,
            api_key="none",
            concurrency=CONCURRENCY,
            limiter_url=limiter_url,
        )
    return {
        "seconds": taken.seconds,
        "cpu_us_per_row": taken.cpu_seconds / rows * 1e6,
        "rss_mb": child.peak_rss_mb(),
        "rss_before_mb": before,
        "cold_seconds": cold_seconds,
        "succeeded": summary.rows_by_status.get("success", 0),
    }


def compare(rows: int, runs: int) -> dict[str, Any]:
    """Run ours and the bare loop by turns."""
    mine, bare = [], []
    server = child.serve(EndpointOptions(latency=LATENCY, full_records=False))
    with server, TemporaryDirectory(prefix="limits-") as shared:
        for _ in range(runs):
            mine.append(
                child.call(
                    "benchmarks.engine:ours",
                    rows=rows,
                    base_url=server.base_url,
                    limiter_url=f"file://{shared}",
                )
            )
            bare.append(
                child.call(
                    "benchmarks.bare_loop:measure",
                    rows=rows,
                    base_url=server.base_url,
                    concurrency=CONCURRENCY,
                )
            )
            server.reset()
    assert all(run["succeeded"] == rows for run in (*mine, *bare))
    ratios = [theirs["seconds"] / us["seconds"] for us, theirs in zip(mine, bare, strict=True)]
    return {
        "rows": rows,
        "ratio": rounded(median(ratios)),
        "ratios": [rounded(ratio) for ratio in ratios],
        "first_ratio": rounded(ratios[0]),
        "ours": _medians(mine),
        "bare": _medians(bare),
    }


def _medians(runs: Sequence[dict[str, Any]]) -> dict[str, float]:
    return {name: rounded(median(run[name] for run in runs)) for name in runs[0]}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    chosen = options("engine", __doc__, arguments, runs=3)
    sizes = (100, 200) if chosen.quick else (2_000, 20_000)
    small, large = (compare(rows, 1 if chosen.quick else chosen.runs) for rows in sizes)
    growth = large["ours"]["rss_mb"] / small["ours"]["rss_mb"]
    cpu = max(each["ours"]["cpu_us_per_row"] for each in (small, large))
    value = min(small["ratio"], large["ratio"])
    Report(
        name="engine",
        value=value,
        unit="throughput of the bare loop, at the slower of the two sizes",
        target=f"≥ 0.95, ≤ 600 µs CPU a row, RSS flat (≤ {_FLAT:g} times) from the small to the large size",
        ok=value >= 0.95 and cpu <= 600 and growth <= _FLAT,
        baseline={
            "what": "bare aiohttp loop, same bodies, 64 in flight, answers read as JSON",
            "rows_per_second": [rounded(each["rows"] / each["bare"]["seconds"]) for each in (small, large)],
        },
        details={
            "cpu_us_per_row": cpu,
            "rss_growth": rounded(growth),
            "small": small,
            "large": large,
            "in_flight": CONCURRENCY,
            "latency_seconds": LATENCY,
        },
    ).print()


if __name__ == "__main__":
    main()
