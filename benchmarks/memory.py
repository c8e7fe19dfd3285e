"""The most memory that split and merge ever take, at 1, 4 and 16 million short rows.

Counted is all of it, of the process and of every process it starts: pages shared between them once.
"""

from __future__ import annotations

from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from benchmarks import child
from benchmarks.report import Report, options, rounded

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST_MB = 400
#: Memory may grow by as much from the smallest to the largest size and still count as flat.
_FLAT = 1.25
_ROWS_PER_SHARD = 16_000


def write_source(*, path: str, rows: int) -> dict[str, Any]:
    """Write the input."""
    from benchmarks import finished  # noqa: PLC0415 -- in a process of its own only

    finished.write_source(path, rows)
    return {}


def split(*, source: str, destination: str) -> dict[str, Any]:
    """Split once."""
    from airflow_llm_provider import jobs  # noqa: PLC0415
    from benchmarks import finished  # noqa: PLC0415

    settings = jobs.SplitOptions(shard_tokens=10**9, max_rows_per_shard=_ROWS_PER_SHARD)
    with child.effort() as taken:
        result = jobs.split(finished.SPEC, source, destination, options=settings)
    return {"seconds": taken.seconds, "rows": result.estimate.rows, "rss_mb": child.peak_rss_mb()}


def only_read(*, source: str) -> dict[str, Any]:
    """Read the input and do nothing with it: what pyarrow itself takes."""
    import pyarrow.parquet as pq  # noqa: PLC0415 -- a task loads Arrow by way of the package, and so does split

    with child.effort() as taken, pq.ParquetFile(source, pre_buffer=False, buffer_size=1 << 20) as file:
        rows = sum(batch.num_rows for batch in file.iter_batches(4096))
    return {"seconds": taken.seconds, "rows": rows, "rss_mb": child.peak_rss_mb()}


def measure(rows: int) -> dict[str, Any]:
    """Split and merge so many rows."""
    with TemporaryDirectory(prefix="memory-") as place:
        source = f"{place}/source.parquet"
        child.call("benchmarks.memory:write_source", path=source, rows=rows)
        split_run, split_mb = child.call_with_peak(
            "benchmarks.memory:split", source=source, destination=f"{place}/split"
        )
        read_run, read_mb = child.call_with_peak("benchmarks.memory:only_read", source=source)
    with TemporaryDirectory(prefix="memory-") as place:
        shards = -(-rows // _ROWS_PER_SHARD)
        plan = child.call("benchmarks.merge:prepare", destination=f"{place}/output", rows=rows, shards=shards)
        merge_run, merge_mb = child.call_with_peak(
            "benchmarks.merge:ours", destination=f"{place}/output", plan_id=plan["plan_id"]
        )
    assert split_run["rows"] == merge_run["rows"] == read_run["rows"] == rows
    return {
        "rows": rows,
        "split_mb": rounded(max(split_mb, split_run["rss_mb"])),
        "split_seconds": rounded(split_run["seconds"]),
        "merge_mb": rounded(max(merge_mb, merge_run["rss_mb"])),
        "merge_seconds": rounded(merge_run["seconds"]),
        "read_mb": rounded(max(read_mb, read_run["rss_mb"])),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    chosen = options("memory", __doc__, arguments, runs=1)
    sizes = (1_000, 4_000) if chosen.quick else (1_000_000, 4_000_000, 16_000_000)
    found = [measure(rows) for rows in sizes]
    most = max(max(each["split_mb"], each["merge_mb"]) for each in found)
    growth = max(found[-1][name] / found[0][name] for name in ("split_mb", "merge_mb"))
    Report(
        name="memory",
        value=most,
        unit="megabytes at the most",
        target=f"≤ {_MOST_MB} MB and flat (≤ {_FLAT:g} times from the smallest to the largest)",
        ok=most <= _MOST_MB and growth <= _FLAT,
        baseline={
            "what": "pyarrow reading the same file batch by batch, doing nothing with it",
            "megabytes": [each["read_mb"] for each in found],
        },
        details={"growth": rounded(growth), "sizes": found},
    ).print()


if __name__ == "__main__":
    main()
