"""Putting 1,000 finished shards together, against pyarrow copying the same files once."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from benchmarks import child
from benchmarks.report import Report, options, rounded

if TYPE_CHECKING:
    from collections.abc import Sequence


def prepare(*, destination: str, rows: int, shards: int) -> dict[str, Any]:
    """Write a job in which every shard is finished."""
    from benchmarks import finished  # noqa: PLC0415 -- not for those who only copy

    plan = finished.finish(destination, rows=rows, rows_per_shard=-(-rows // shards))
    return {"plan_id": plan.plan_id, "shards": len(plan.shards)}


def ours(*, destination: str, plan_id: str) -> dict[str, Any]:
    """Merge once."""
    from airflow_llm_provider.jobs import merge  # noqa: PLC0415 -- loaded before the clock starts

    with child.effort() as taken:
        summary = merge(f"_llm/plans/{plan_id}.json", destination=destination)
    return {"seconds": taken.seconds, "rows": summary.rows, "rss_mb": child.peak_rss_mb()}


def copy(*, destination: str) -> dict[str, Any]:
    """Copy shards and results into one file each."""
    from benchmarks import finished  # noqa: PLC0415

    place = TemporaryDirectory(prefix="copied-", dir=Path(destination).parent)
    with place as target, child.effort() as taken:
        finished.copy(destination, f"{target}/copy")
    return {"seconds": taken.seconds, "rss_mb": child.peak_rss_mb()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    chosen = options("merge", __doc__, arguments, runs=3)
    rows, shards, runs = (2_000, 10, 1) if chosen.quick else (4_000_000, 1_000, chosen.runs)
    mine, theirs = [], []
    with TemporaryDirectory(prefix="merge-") as place:
        destination = f"{place}/output"
        plan = child.call("benchmarks.merge:prepare", destination=destination, rows=rows, shards=shards)
        for _ in range(runs):
            mine.append(child.call("benchmarks.merge:ours", destination=destination, plan_id=plan["plan_id"]))
            theirs.append(child.call("benchmarks.merge:copy", destination=destination))
    assert all(run["rows"] == rows for run in mine)
    ratios = [them["seconds"] / us["seconds"] for us, them in zip(mine, theirs, strict=True)]
    Report(
        name="merge",
        value=median(ratios),
        unit="speed of the copy",
        target="≥ 0.5",
        ok=median(ratios) >= 0.5,
        baseline={
            "what": "pyarrow reads every shard and results file and writes them into one file each",
            "seconds": rounded(median(run["seconds"] for run in theirs)),
        },
        details={
            "rows": rows,
            "shards": plan["shards"],
            "seconds": rounded(median(run["seconds"] for run in mine)),
            "rss_mb": rounded(median(run["rss_mb"] for run in mine)),
            "ratios": [rounded(ratio) for ratio in ratios],
        },
    ).print()


if __name__ == "__main__":
    main()
