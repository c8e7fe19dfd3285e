"""The account book of a run's budget: what was spent, and what requests in flight may still take.

The two are kept apart: what is reserved comes free when its answer is in, what is spent never does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from airflow_llm_provider.errors import LLMRetryableError


@dataclass(frozen=True, kw_only=True, slots=True)
class Spent:
    """Tokens and money.

    :param cost_usd: US dollars, 0 where nobody asks for the cost.
    """

    tokens: int = 0
    cost_usd: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(tokens=self.tokens + other.tokens, cost_usd=self.cost_usd + other.cost_usd)

    def __sub__(self, other: Spent) -> Spent:
        return Spent(tokens=self.tokens - other.tokens, cost_usd=self.cost_usd - other.cost_usd)


@dataclass(frozen=True, kw_only=True, slots=True)
class Balance:
    """The two sums of a book.

    :param spent: what is gone, for certain or as good as.
    :param reserved: the most that requests may take whose end nobody has told yet.
    """

    spent: Spent = field(default_factory=Spent)
    reserved: Spent = field(default_factory=Spent)

    @property
    def total(self) -> Spent:
        """Both together, which never exceeds the budget."""
        return self.spent + self.reserved

    def settle(self, reserved: Spent, spent: Spent) -> Balance:
        """Return the balance after a reservation was replaced by what was spent."""
        return Balance(spent=self.spent + spent, reserved=at_least(self.reserved - reserved, Spent()))


class BookAwayError(LLMRetryableError):
    """A book that cannot be asked at the moment.

    :param unchanged: whether it is certain that the step was not taken.
    """

    def __init__(self, message: str, *, unchanged: bool) -> None:
        super().__init__(message, retry_after=60.0)
        self.unchanged = unchanged


class AccountBook(Protocol):
    """What a run has spent and reserved so far; every step is atomic for all processes that share the book.

    A book that cannot be read raises: unknown is never "nothing spent".
    """

    def reserve(self, cost: Spent, *, limit: Spent) -> tuple[bool, Balance]:
        """Reserve ``cost`` unless that takes the total above ``limit``; return whether it did, and the sums now."""
        ...

    def settle(self, reserved: Spent, spent: Spent) -> Balance:
        """Replace a reservation by what was spent, and return the sums now."""
        ...

    def raise_to(self, known: Spent) -> Balance:
        """Make sure that no less than ``known`` is spent, in case the book was lost; return the sums."""
        ...


class MemoryBook:
    """The book of a run in one process."""

    def __init__(self) -> None:
        self._balance = Balance()

    def reserve(self, cost: Spent, *, limit: Spent) -> tuple[bool, Balance]:
        """Reserve ``cost`` unless that takes the total above ``limit``."""
        if exceeds(self._balance.total + cost, limit):
            return False, self._balance
        self._balance = Balance(spent=self._balance.spent, reserved=self._balance.reserved + cost)
        return True, self._balance

    def settle(self, reserved: Spent, spent: Spent) -> Balance:
        """Replace a reservation."""
        self._balance = self._balance.settle(reserved, spent)
        return self._balance

    def raise_to(self, known: Spent) -> Balance:
        """Raise what is spent."""
        self._balance = Balance(spent=at_least(self._balance.spent, known), reserved=self._balance.reserved)
        return self._balance


def exceeds(spent: Spent, limit: Spent) -> bool:
    """Tell whether a sum is above a limit, but for the last bits of floating point."""
    return spent.tokens > limit.tokens or spent.cost_usd > limit.cost_usd * (1 + 1e-12)


def at_least(spent: Spent, least: Spent) -> Spent:
    """Return the greater of both, tokens and money each."""
    return Spent(tokens=max(spent.tokens, least.tokens), cost_usd=max(spent.cost_usd, least.cost_usd))
