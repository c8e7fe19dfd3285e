"""The endpoint answers 503 for 20 seconds in the middle of a run: rows lost, calls wasted, time until it is over."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from statistics import median
from typing import TYPE_CHECKING, Any

from airflow_llm_provider.testing.scripted_server import EndpointOptions, Rule
from benchmarks import bare_loop, child, tickets
from benchmarks.report import Report, options, rounded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_llm_provider.testing.scripted_server import RecordedRequest

CONCURRENCY = 64
LATENCY = 0.25
#: Share of the usual requests in flight that counts as full speed.
_FULL = 0.9
_NAIVE_ATTEMPTS = 6


def ours(*, rows: int, base_url: str, after: float, outage: float) -> dict[str, Any]:
    """Run the job once, in this process."""
    tickets.warm_up(rows)
    began_at = begin(base_url, after, outage)
    with child.effort() as taken:
        summary = tickets.run(rows, base_url=base_url, api_key="none", concurrency=CONCURRENCY)
    succeeded = summary.rows_by_status.get("success", 0)
    return {"began_at": began_at, "seconds": taken.seconds, "succeeded": succeeded}


def naive(*, rows: int, base_url: str, after: float, outage: float) -> dict[str, Any]:
    """Send the same requests in a loop that retries as most do."""
    bodies = tickets.bodies(rows)
    began_at = begin(base_url, after, outage)
    with child.effort() as taken:
        ended = asyncio.run(
            bare_loop.send(bodies, base_url=base_url, concurrency=CONCURRENCY, attempts=_NAIVE_ATTEMPTS)
        )
    return {"began_at": began_at, "seconds": taken.seconds, "succeeded": ended[200]}


def begin(base_url: str, after: float, outage: float) -> float:
    """Start the server's script and return the time."""
    rules = [Rule(status=503, after=after, until=after + outage).to_json()]
    url = f"{base_url.removesuffix('/v1')}/_script"
    with urllib.request.urlopen(url, data=json.dumps(rules).encode()):  # noqa: S310 -- our own server
        return time.time()


def observe(target: str, rows: int, *, after: float, outage: float) -> dict[str, Any]:
    """Run one client through an outage and tell what the server saw."""
    with child.serve(EndpointOptions(latency=LATENCY, full_records=False)) as server:
        found = child.call(target, rows=rows, base_url=server.base_url, after=after, outage=outage)
        requests = server.requests
    failed = [request for request in requests if request.status == 503]
    began_at = found["began_at"] + after
    return {
        "lost": rows - found["succeeded"],
        "wasted": len(failed),
        "seconds": rounded(found["seconds"]),
        "answered_before": sum(request.answered and request.at < began_at for request in requests),
        "full_speed_after": _full_speed_after(requests, began_at + outage),
    }


def _full_speed_after(requests: Sequence[RecordedRequest], recovered_at: float) -> float | None:
    """Return the seconds from recovery until nearly as many requests were in flight as may be; ``None``: never."""
    changes = sorted(
        [(request.at, 1) for request in requests]
        + [(request.ended_at, -1) for request in requests if request.ended_at is not None]
    )
    in_flight = 0
    for at, change in changes:
        in_flight += change
        if at >= recovered_at and in_flight >= _FULL * CONCURRENCY:
            return rounded(at - recovered_at)
    return None


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    chosen = options("outage", __doc__, arguments, runs=3)
    rows, runs = (200, 1) if chosen.quick else (1_000, chosen.runs)
    # Seconds to the outage, in which about half of the rows are answered, and of the outage.
    times = {"after": 0.3, "outage": 0.2} if chosen.quick else {"after": 2.0, "outage": 20.0}
    mine, theirs = [], []
    for _ in range(runs):
        mine.append(observe("benchmarks.outage:ours", rows, **times))
        theirs.append(observe("benchmarks.outage:naive", rows, **times))
    lost, wasted = max(run["lost"] for run in mine), median(run["wasted"] for run in mine)
    delays = [run["full_speed_after"] for run in mine]
    delay = None if None in delays else median(delays)
    Report(
        name="outage",
        value=wasted,
        unit="wasted calls",
        target="0 lost, ≤ 100 wasted calls, back at full speed ≤ 2 s after recovery",
        ok=lost == 0 and wasted <= 100 and delay is not None and delay <= 2,
        baseline={
            "what": f"aiohttp loop with 64 workers, {_NAIVE_ATTEMPTS} attempts a row, waits doubling from 0.5 s to 8 s",
            "runs": theirs,
        },
        details={
            "rows": rows,
            "outage_seconds": times["outage"],
            "lost": lost,
            "full_speed_after": delay,
            "runs": mine,
        },
    ).print()


if __name__ == "__main__":
    main()
