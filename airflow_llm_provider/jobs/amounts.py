"""Counts and sums as people read them."""

from __future__ import annotations

import math

#: Decimals of a sum that is not small.
_DECIMALS = 4
#: Below it, four decimals would hardly show anything.
_SMALL = 0.001
#: Digits that a small sum has instead.
_DIGITS = 3


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, which takes an s unless there is one: ``1 shard``, ``1,024 shards``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def dollars(amount: float) -> str:
    """Return a sum of US dollars: ``$1,234.5000``, ``$0.0048``, ``$0.000123``."""
    decimals = _DECIMALS
    if 0 < abs(amount) < _SMALL:
        decimals = _DIGITS - 1 - math.floor(math.log10(abs(amount)))
    return f"${amount:,.{decimals}f}"
