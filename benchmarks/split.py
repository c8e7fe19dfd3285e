"""Reading, rendering, counting and writing shards, against nothing but ``encode_ordinary`` over the same texts."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pyarrow.parquet as pq

from airflow_llm_provider import jobs
from airflow_llm_provider.dataset.counting import tokens
from airflow_llm_provider.dataset.counting.vocabularies import load_encoding
from airflow_llm_provider.prompt import PromptTemplate
from benchmarks import child, texts, tickets
from benchmarks.report import Report, options, rounded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

_ENCODING = "o200k_base"
_DOCUMENTS = dataclasses.replace(tickets.SPEC, prompt="{{ body }}")


def ours(*, kind: str, rows: int, fast: bool) -> dict[str, Any]:
    """Split once, in this process and whatever others it starts.

    :param fast: whether the optional batch counter may be used.
    """
    with nullcontext() if fast else _without_toktok():
        tickets.warm_up()
        source = _source(kind, rows)
        settings = jobs.SplitOptions(shard_tokens=200_000)
        spec = _DOCUMENTS if kind == "documents" else tickets.SPEC
        with TemporaryDirectory(prefix="split-") as destination, child.effort() as taken:
            result = jobs.split(spec, source, destination, options=settings)
    return {
        "seconds": taken.seconds,
        "cpu_seconds": taken.cpu_seconds,
        "tokens": result.estimate.prompt_tokens,
        "shards": len(result.references),
        "rss_mb": child.peak_rss_mb(),
    }


def _without_toktok() -> AbstractContextManager[object]:
    """Count as where toktok-rs is not installed."""
    return patch.object(tokens, "_toktok", lambda _: None)


def loop(*, kind: str, rows: int) -> dict[str, Any]:
    """Count the same texts in a loop; they are read and rendered before the clock starts."""
    encode = load_encoding(_ENCODING).encode_ordinary
    template = PromptTemplate(_DOCUMENTS if kind == "documents" else tickets.SPEC)
    table = pq.read_table(_source(kind, rows), columns=sorted(template.columns))
    prompts = [template.messages(row)[-1]["content"] for row in table.to_pylist()]
    with child.effort() as taken:
        total = sum(len(encode(prompt)) for prompt in prompts)
    return {
        "seconds": taken.seconds,
        "tokens": total,
        "megabytes": sum(len(p.encode()) for p in prompts) / 1e6,
    }


def _source(kind: str, rows: int) -> str:
    make: Callable[[int], str] = texts.documents if kind == "documents" else texts.short_texts
    return make(rows)


def compare(kind: str, rows: int, runs: int) -> dict[str, Any]:
    """Run ours with and without the batch counter, and the loop, by turns."""
    fast, slow, plain = [], [], []
    for _ in range(runs):
        fast.append(child.call("benchmarks.split:ours", kind=kind, rows=rows, fast=True))
        plain.append(child.call("benchmarks.split:loop", kind=kind, rows=rows))
        slow.append(child.call("benchmarks.split:ours", kind=kind, rows=rows, fast=False))
    return {
        "rows": rows,
        "with_toktok": _ratio(plain, fast),
        "without_toktok": _ratio(plain, slow),
        "ours": _medians(fast),
        "ours_without_toktok": _medians(slow),
        "loop": _medians(plain),
    }


def _ratio(theirs: Sequence[dict[str, Any]], mine: Sequence[dict[str, Any]]) -> float:
    return rounded(median(a["seconds"] / b["seconds"] for a, b in zip(theirs, mine, strict=True)))


def _medians(runs: Sequence[dict[str, Any]]) -> dict[str, float]:
    return {name: rounded(median(run[name] for run in runs)) for name in runs[0]}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    chosen = options("split", __doc__, arguments, runs=3)
    short_rows, document_rows, runs = (500, 2, 1) if chosen.quick else (100_000, 100, chosen.runs)
    short = compare("short", short_rows, runs)
    long = compare("documents", document_rows, runs)
    value = min(short["with_toktok"], long["with_toktok"])
    without = min(short["without_toktok"], long["without_toktok"])
    Report(
        name="split",
        value=value,
        unit="speed of the loop, at the slower of the two kinds of text",
        target="≥ 3 on both, ≥ 1.5 without toktok-rs (2 cores)",
        ok=value >= 3 and without >= 1.5,
        baseline={
            "what": "loop of tiktoken's encode_ordinary over rendered texts in memory: no reading, no writing",
            "rows_per_second": {
                "short": rounded(short_rows / short["loop"]["seconds"]),
                "documents": rounded(document_rows / long["loop"]["seconds"]),
            },
        },
        details={"without_toktok": without, "short": short, "documents": long},
    ).print()


if __name__ == "__main__":
    main()
