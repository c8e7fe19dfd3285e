"""What a budget over Redis costs: the same job with its limits in Redis, with and without ``max_tokens_total``."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

from airflow_llm_provider.testing.scripted_server import EndpointOptions
from benchmarks import child, tickets
from benchmarks.limits import redis_server
from benchmarks.report import Report, options, rounded

if TYPE_CHECKING:
    from collections.abc import Sequence

CONCURRENCY = 64
LATENCY = 0.05
#: Tokens for each row, of which it takes some 120: the budget is never near its end.
_PLENTY = 400


def ours(*, rows: int, base_url: str, limiter_url: str, budget: bool) -> dict[str, Any]:
    """Run the job once, in this process."""
    tickets.warm_up(rows)
    with child.effort() as taken:
        summary = tickets.run(
            rows,
            base_url=base_url,
            api_key="none",
            concurrency=CONCURRENCY,
            limiter_url=limiter_url,
            max_tokens_total=rows * _PLENTY if budget else None,
        )
    return {
        "seconds": taken.seconds,
        "cpu_us_per_row": taken.cpu_seconds / rows * 1e6,
        "succeeded": summary.rows_by_status.get("success", 0),
    }


def compare(rows: int, runs: int) -> dict[str, Any]:
    """Run both by turns."""
    found: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
    with child.serve(EndpointOptions(latency=LATENCY, full_records=False)) as server, redis_server() as url:
        for _ in range(runs):
            for budget, mine in found.items():
                arguments = {"rows": rows, "base_url": server.base_url, "limiter_url": url, "budget": budget}
                mine.append(child.call("benchmarks.budget:ours", **arguments))
                server.reset()
    assert all(run["succeeded"] == rows for mine in found.values() for run in mine)
    pairs = list(zip(found[False], found[True], strict=True))
    return {
        "rows": rows,
        "ratios": [rounded(without["seconds"] / within["seconds"]) for without, within in pairs],
        "processor_time": [
            rounded(within["cpu_us_per_row"] / without["cpu_us_per_row"]) for without, within in pairs
        ],
        "without": _medians(found[False], rows),
        "with": _medians(found[True], rows),
    }


def _medians(runs: Sequence[dict[str, Any]], rows: int) -> dict[str, float]:
    return {
        "rows_per_second": rounded(median(rows / run["seconds"] for run in runs)),
        "cpu_us_per_row": rounded(median(run["cpu_us_per_row"] for run in runs)),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    chosen = options("budget", __doc__, arguments, runs=3)
    found = compare(100, 1) if chosen.quick else compare(8_000, chosen.runs)
    value, more = median(found["ratios"]), median(found["processor_time"])
    Report(
        name="budget",
        value=value,
        unit="throughput of the same job without a budget",
        target="≥ 0.9, ≤ 1.1 times the processor time a row",
        ok=value >= 0.9 and more <= 1.1,
        baseline={"what": "the same job over the same Redis, without a budget", **found["without"]},
        details={**found, "in_flight": CONCURRENCY, "latency_seconds": LATENCY},
    ).print()


if __name__ == "__main__":
    main()
