"""Progress on a terminal as a bar that stays in place, and everywhere else as lines, one for each change and tenth of rows."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from airflow_llm_provider.local.demo.follow import Progress

__all__ = ["Show", "progress_display", "progress_line", "say", "table_width", "working"]

#: Characters of a line where there is no terminal.
_WIDTH = 100
# Bars and names of shards have characters that a log's encoding may lack.
_console = Console(highlight=False, soft_wrap=True)


class Show(Protocol):
    """Shows how far a run is."""

    def __call__(self, progress: Progress) -> None:
        """Show it."""


def say(text: str) -> None:
    """Print one line.

    :param text: plain text; nothing in it is taken for markup.
    """
    _console.print(text, markup=False)


def table_width(console: Console = _console) -> int:
    """Return how many characters wide a table may be.

    :param console: where it is printed.
    """
    return console.width if console.is_terminal else _WIDTH


def working(text: str) -> AbstractContextManager[object]:
    """Show on a terminal what goes on, for as long as it does; nothing stays of it.

    :param text: plain text.
    """
    return _console.status(escape(text))


@contextmanager
def progress_display(*, terminal: bool | None = None) -> Iterator[Show]:
    """Yield what shows progress.

    :param terminal: whether to draw a bar; None asks the output.
    """
    if terminal is None:
        terminal = sys.stdout.isatty()
    if terminal:
        with _bar() as show:
            yield show
    else:
        yield _Lines()


def progress_line(progress: Progress) -> str:
    """Return progress as one line.

    :param progress: the run at one moment.
    """
    parts = [progress.step]
    if progress.rows is not None and progress.shards is not None:
        parts.append(f"{progress.rows_done:,} of {progress.rows:,} rows")
        parts.append(f"{progress.shards_done} of {progress.shards} shards")
    if progress.rows_done > progress.rows_answered:
        parts.append(f"{progress.rows_done - progress.rows_answered:,} without an answer")
    if progress.tokens:
        parts.append(f"{progress.tokens:,} tokens")
    if progress.failed:
        parts.append(f"failed: {', '.join(progress.failed)}")
    return " · ".join(parts)


class _Lines:
    """A line when something changed, but for rows only one each tenth."""

    def __init__(self) -> None:
        self._last: tuple[object, ...] = ()

    def __call__(self, progress: Progress) -> None:
        tenths = progress.rows_done * 10 // progress.rows if progress.rows else 0
        now = (progress.step, progress.rows, progress.shards_done, progress.failed, tenths)
        if now != self._last:
            say(f"  {progress_line(progress)}")
            self._last = now


@contextmanager
def _bar() -> Iterator[Show]:
    columns = (
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TextColumn("rows · {task.description}", markup=False),
        TimeElapsedColumn(),
    )
    with Bar(*columns, console=_console) as bar:
        task = bar.add_task("starting", total=None)

        def show(progress: Progress) -> None:
            bar.update(
                task,
                completed=progress.rows_done,
                total=progress.rows,
                description=_short(progress),
            )

        yield show


def _short(progress: Progress) -> str:
    parts = [progress.step]
    if progress.shards is not None:
        parts.append(f"{progress.shards_done}/{progress.shards} shards")
    if progress.rows_done > progress.rows_answered:
        parts.append(f"{progress.rows_done - progress.rows_answered:,} without an answer")
    if progress.failed:
        parts.append(f"failed: {', '.join(progress.failed)}")
    return " · ".join(parts)
