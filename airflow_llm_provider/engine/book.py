"""The account book of a run's budget: what was spent, and what requests in flight may still take.

The two are kept apart: what is reserved comes free when its answer is in, what is spent never does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from airflow_llm_provider.errors import LLMRetryableError

if TYPE_CHECKING:
    from collections.abc import Mapping

Name = TypeVar("Name")


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


class Reservations(Generic[Name]):
    """Who has reserved how much.

    :param by_holder: what is reserved, by holder.
    """

    def __init__(self, by_holder: Mapping[Name, Spent] | None = None) -> None:
        self.by_holder: dict[Name, Spent] = dict(by_holder or {})

    @property
    def total(self) -> Spent:
        """All of it."""
        return sum(self.by_holder.values(), Spent())

    def add(self, holder: Name, cost: Spent) -> None:
        """Reserve more."""
        self.by_holder[holder] = self.by_holder.get(holder, Spent()) + cost

    def take(self, holder: Name, cost: Spent) -> None:
        """Reserve less, by no more than the holder has."""
        left = at_least(self.by_holder.get(holder, Spent()) - cost, Spent())
        # Whoever reserves reserves tokens; what is left of the money without them is a rounding error.
        if left.tokens:
            self.by_holder[holder] = left
        else:
            self.drop(holder)

    def drop(self, holder: Name) -> None:
        """Reserve nothing any more."""
        self.by_holder.pop(holder, None)


class BookAwayError(LLMRetryableError):
    """A book that cannot be asked at the moment.

    :param unchanged: whether it is certain that the step was not taken.
    """

    def __init__(self, message: str, *, unchanged: bool) -> None:
        super().__init__(message, retry_after=60.0)
        self.unchanged = unchanged


class AccountBook(Protocol):
    """What a run has spent and reserved so far; every step is atomic for all processes that share the book.

    Whoever reserves names a holder, of which only one process speaks at a time, such as the shard whose lease it has. A
    book that cannot be read raises: unknown is never "nothing spent".
    """

    def reserve(self, cost: Spent, *, limit: Spent, holder: str = "") -> tuple[bool, Balance]:
        """Reserve ``cost`` unless that takes the total above ``limit``; return whether it did, and the sums now."""
        ...

    def settle(self, reserved: Spent, spent: Spent, *, holder: str = "") -> Balance:
        """Replace a holder's reservation by what was spent, and return the sums now."""
        ...

    def free(self, holder: str) -> Balance:
        """Forget all that a holder has reserved, since nobody is left who would settle it; return the sums."""
        ...

    def raise_to(self, known: Spent) -> Balance:
        """Make sure that no less than ``known`` is spent, in case the book was lost; return the sums."""
        ...


class MemoryBook:
    """The book of a run in one process."""

    def __init__(self) -> None:
        self._spent = Spent()
        self._held: Reservations[str] = Reservations()

    def reserve(self, cost: Spent, *, limit: Spent, holder: str = "") -> tuple[bool, Balance]:
        """Reserve ``cost`` unless that takes the total above ``limit``."""
        fits = not exceeds(self._spent + self._held.total + cost, limit)
        if fits:
            self._held.add(holder, cost)
        return fits, self._balance

    def settle(self, reserved: Spent, spent: Spent, *, holder: str = "") -> Balance:
        """Replace a reservation."""
        self._held.take(holder, reserved)
        self._spent += spent
        return self._balance

    def free(self, holder: str) -> Balance:
        """Forget what a holder has reserved."""
        self._held.drop(holder)
        return self._balance

    def raise_to(self, known: Spent) -> Balance:
        """Raise what is spent."""
        self._spent = at_least(self._spent, known)
        return self._balance

    @property
    def _balance(self) -> Balance:
        return Balance(spent=self._spent, reserved=self._held.total)


def exceeds(spent: Spent, limit: Spent) -> bool:
    """Tell whether a sum is above a limit, but for the last bits of floating point."""
    return spent.tokens > limit.tokens or spent.cost_usd > limit.cost_usd * (1 + 1e-12)


def at_least(spent: Spent, least: Spent) -> Spent:
    """Return the greater of both, tokens and money each."""
    return Spent(tokens=max(spent.tokens, least.tokens), cost_usd=max(spent.cost_usd, least.cost_usd))
