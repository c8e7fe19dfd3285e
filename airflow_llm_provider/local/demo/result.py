"""The demo's end: a table of answers, what they took, and where everything lies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_llm_provider.xcom import RunSummary

__all__ = ["counts_table", "local_path", "read_rows", "readable_log", "result_table"]

_SHOWN = 12
_WIDE = 40


def local_path(location: str) -> Path:
    """Return the path of a file URL, or of what is a path already.

    :param location: URL or path.
    """
    return Path(location.removeprefix("file://") if urlsplit(location).scheme == "file" else location)


def read_rows(files: Sequence[str], columns: Sequence[str]) -> list[dict[str, Any]]:
    """Read columns of the output files, in order.

    :param files: the summary's files.
    :param columns: the columns wanted.
    """
    import pyarrow.parquet as pq  # noqa: PLC0415 - 40 MB, needed once and at the end

    rows: list[dict[str, Any]] = []
    for file in files:
        # Not read_table: it would take `ds=…` in a path for a further column.
        with pq.ParquetFile(local_path(file)) as parquet:
            rows += parquet.read(columns=list(columns)).to_pylist()
    return rows


def result_table(
    rows: Sequence[Mapping[str, Any]], asked: Sequence[str], answered: Sequence[str], width: int
) -> str:
    """Lay out the first rows as text.

    :param rows: rows of the output.
    :param asked: columns of the input to show; where lines are too long, the widest of them are cut.
    :param answered: further columns to show.
    :param width: characters of a line.
    """
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in asked:
        table.add_column(_cell(column), max_width=_WIDE)
    for column in answered:
        table.add_column(_cell(column), max_width=_WIDE, no_wrap=True)
    for row in rows[:_SHOWN]:
        table.add_row(*(_cell(row[column]) for column in (*asked, *answered)))
    if len(rows) > _SHOWN:
        table.add_row(f"… {len(rows) - _SHOWN} more")
    return _text(table, width)


def counts_table(summary: RunSummary, seconds: float, width: int) -> str:
    """Lay out what the run took.

    :param summary: the run's summary.
    :param seconds: wall time of the whole run.
    :param width: characters of a line.
    """
    usage = summary.usage
    cost = "unknown" if summary.cost_usd is None else f"{summary.cost_usd:.4f} USD"
    rows = ", ".join(f"{count} {status}" for status, count in summary.rows_by_status.items())
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_row("rows", f"{summary.rows}: {rows}")
    table.add_row("shards", str(summary.shards))
    table.add_row(
        "requests", f"{summary.requests}, {summary.retries} of them retries; {summary.reused} rows reused"
    )
    table.add_row("tokens", f"{usage.prompt_tokens:,} in, {usage.completion_tokens:,} out")
    table.add_row("cost", cost)
    table.add_row("time", f"{seconds:.0f} s")
    return _text(table, width)


def readable_log(records: str, lines: int = 12) -> str:
    """Return the last warnings and errors of a task log, or its last lines when there are none.

    :param records: log as Airflow's API gives it, one JSON record per line.
    :param lines: how many.
    """
    parsed = [json.loads(record) for record in records.splitlines()]
    serious = [record for record in parsed if record.get("level") in {"warning", "error", "critical"}]
    told: list[str] = []
    for record in serious or parsed:
        told.append(f"{record.get('level') or ''}: {record.get('event')}".removeprefix(": "))
        told += [f"  {error['exc_type']}: {error['exc_value']}" for error in record.get("error_detail") or []]
    return "\n".join(told[-lines:])


def _cell(value: Any) -> Text:
    # Text from the dataset is no markup: a description may hold [brackets], and backslashes before them.
    # One line, also in a column that may wrap: only such columns are cut before others.
    return Text(" ".join(str("" if value is None else value).split()), no_wrap=True, overflow="ellipsis")


def _text(table: Table, width: int) -> str:
    console = Console(width=width, highlight=False, color_system=None)
    with console.capture() as capture:
        console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())
