"""Tokens and money."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Spent", "at_least", "exceeds"]


class Spent(NamedTuple):
    """Tokens and money together. A tuple, since some are made for each request.

    :param cost_usd: US dollars, 0 where nobody asks for the cost.
    """

    tokens: int = 0
    cost_usd: float = 0.0

    def __add__(self, other: Spent) -> Spent:  # type: ignore[override]
        return Spent(self[0] + other[0], self[1] + other[1])

    def __sub__(self, other: Spent) -> Spent:
        return Spent(self[0] - other[0], self[1] - other[1])

    def __mul__(self, times: int) -> Spent:  # type: ignore[override]
        return Spent(self[0] * times, self[1] * times)


def exceeds(spent: Spent, limit: Spent) -> bool:
    """Tell whether a sum is above a limit, but for the last bits of floating point."""
    return spent.tokens > limit.tokens or spent.cost_usd > limit.cost_usd * (1 + 1e-12)


def at_least(spent: Spent, least: Spent) -> Spent:
    """Return the greater of both, tokens and money each."""
    return Spent(tokens=max(spent.tokens, least.tokens), cost_usd=max(spent.cost_usd, least.cost_usd))
