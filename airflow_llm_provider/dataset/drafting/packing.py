"""Packing rows into shards, in order: pure and deterministic."""

from __future__ import annotations

import sys
import tempfile
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Counts = NDArray[np.int64]

#: Rows whose weights are kept in memory; more go to a temporary file without a name.
_ROWS_IN_MEMORY = 1 << 18
_ROWS_PER_READ = 1 << 18


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The most that one shard may hold; a single row beyond it gets a shard of its own.

    :param tokens: prompt tokens.
    :param rows: rows; ``None``: any number.
    :param size: bytes of the rows; ``None``: any number.
    """

    tokens: int
    rows: int | None = None
    size: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """One shard of a packing.

    :param first_row: number of its first row in the input, from 0.
    """

    first_row: int
    rows: int
    tokens: int


class Packer:
    """Fills shards with rows as they come; a shard is closed when the next row would exceed its budget.

    This gives the fewest shards that keep the order, and never more for a larger budget.

    :param most: stop counting beyond so many shards; ``None``: go on.
    :param breaks: numbers of rows before which a shard ends in any case, rising; may grow meanwhile.
    """

    def __init__(self, budget: Budget, *, most: int | None = None, breaks: Sequence[int] = ()) -> None:
        self._budget = budget
        self._most = most
        self._breaks = breaks
        self._closed: list[Cut] = []
        self._first = 0
        self._rows = 0
        self._tokens = 0
        self._size = 0

    @property
    def closed(self) -> Sequence[Cut]:
        """The shards that are full."""
        return self._closed

    @property
    def overflowed(self) -> bool:
        """Whether there are more shards than ``most``."""
        return self._most is not None and len(self._closed) + bool(self._rows) > self._most

    def add(self, tokens: Counts, sizes: Counts) -> None:
        """Take the next rows: prompt tokens and bytes of each."""
        total_tokens = np.cumsum(tokens, dtype=np.int64)
        total_sizes = np.cumsum(sizes, dtype=np.int64)
        start = 0
        while start < len(tokens) and not self.overflowed:
            end = self._end_of_shard(start, total_tokens, total_sizes)
            if end == start and self._rows:
                self._close()
                continue
            end = max(end, start + 1)
            self._take(start, end, total_tokens, total_sizes)
            start = end

    def _end_of_shard(self, start: int, total_tokens: Counts, total_sizes: Counts) -> int:
        """Return the row before which the open shard is full."""
        before = int(total_tokens[start - 1]) if start else 0
        end = int(np.searchsorted(total_tokens, before + self._budget.tokens - self._tokens, side="right"))
        if self._budget.size is not None:
            before = int(total_sizes[start - 1]) if start else 0
            end = min(
                end, int(np.searchsorted(total_sizes, before + self._budget.size - self._size, side="right"))
            )
        if self._budget.rows is not None:
            end = min(end, start + self._budget.rows - self._rows)
        if self._breaks:
            end = min(end, start + self._rows_to_break())
        return max(end, start)

    def _rows_to_break(self) -> int:
        at = self._first + self._rows
        after = bisect_right(self._breaks, at)
        if self._rows and after and self._breaks[after - 1] == at:
            return 0
        return self._breaks[after] - at if after < len(self._breaks) else sys.maxsize

    def _take(self, start: int, end: int, total_tokens: Counts, total_sizes: Counts) -> None:
        self._rows += end - start
        self._tokens += int(total_tokens[end - 1]) - (int(total_tokens[start - 1]) if start else 0)
        self._size += int(total_sizes[end - 1]) - (int(total_sizes[start - 1]) if start else 0)

    def _close(self) -> None:
        if self._rows:
            self._closed.append(Cut(first_row=self._first, rows=self._rows, tokens=self._tokens))
        self._first += self._rows
        self._rows = self._tokens = self._size = 0

    def finish(self) -> tuple[Cut, ...]:
        """Close the last shard and return all of them."""
        self._close()
        return tuple(self._closed)


class Weights:
    """Tokens and bytes of every row, kept so that the rows can be packed again; memory does not grow with them."""

    def __init__(self) -> None:
        # Without a name, so that nothing is left behind however the process ends.
        self._file: Any = tempfile.SpooledTemporaryFile(max_size=_ROWS_IN_MEMORY * 16)  # noqa: SIM115
        #: Numbers of rows before which a shard ends in any case.
        self.breaks: list[int] = []
        self.rows = 0
        self.tokens = 0
        self.size = 0
        self.largest_tokens = 0
        self.largest_size = 0

    def add(self, tokens: Counts, sizes: Counts) -> None:
        """Note the next rows."""
        if not len(tokens):
            return
        self._file.write(np.stack([tokens, sizes], axis=1).astype(np.int64).tobytes())
        self.rows += len(tokens)
        self.tokens += int(tokens.sum())
        self.size += int(sizes.sum())
        self.largest_tokens = max(self.largest_tokens, int(tokens.max()))
        self.largest_size = max(self.largest_size, int(sizes.max()))

    def __iter__(self) -> Iterator[tuple[Counts, Counts]]:
        self._file.seek(0)
        while data := self._file.read(_ROWS_PER_READ * 16):
            pairs = np.frombuffer(data, dtype=np.int64).reshape(-1, 2)
            yield pairs[:, 0], pairs[:, 1]

    def close(self) -> None:
        """Let go of the memory or the temporary file."""
        self._file.close()


def pack(weights: Weights, budget: Budget, *, most: int | None = None) -> tuple[Cut, ...] | None:
    """Pack all rows; ``None`` when they need more than ``most`` shards."""
    packer = Packer(budget, most=most, breaks=weights.breaks)
    for tokens, sizes in weights:
        packer.add(tokens, sizes)
        if packer.overflowed:
            return None
    return packer.finish()


def smallest_budget(weights: Weights, budget: Budget, most: int) -> int | None:
    """Find the smallest token budget that needs no more than ``most`` shards; ``None`` when no budget does."""
    low, high = 1, max(1, weights.tokens)
    if pack(weights, Budget(tokens=high, rows=budget.rows, size=budget.size), most=most) is None:
        return None
    while low < high:
        middle = (low + high) // 2
        if pack(weights, Budget(tokens=middle, rows=budget.rows, size=budget.size), most=most) is None:
            low = middle + 1
        else:
            high = middle
    return low
