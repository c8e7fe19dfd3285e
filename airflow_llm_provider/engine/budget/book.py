"""The account book of a run's budget: what was spent, and what requests in flight may still take.

The two are kept apart: what is reserved comes free when its answer is in, what is spent never does.

Whoever spends states totals, never changes: what its try has spent so far, and what is reserved for it. So a statement whose
answer was lost is simply made again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from airflow_llm_provider.engine.budget.spent import Spent
from airflow_llm_provider.errors import LLMRetryableError

if TYPE_CHECKING:
    from collections.abc import Mapping


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """Who reserves.

    :param name: such as that of a shard.
    :param session: names the only try that speaks for it now.
    """

    name: str = ""
    session: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Statement:
    """What a holder says of its try, in totals.

    :param spent: what the try has spent since it began.
    :param kept: what stays reserved, of what is reserved for it.
    :param wanted: what shall be reserved, if that fits; at least ``kept``.
    :param last: whether the try is over.
    """

    spent: Spent = field(default_factory=Spent)
    kept: Spent = field(default_factory=Spent)
    wanted: Spent = field(default_factory=Spent)
    last: bool = False


class BookAwayError(LLMRetryableError):
    """A book that cannot be asked at the moment."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retry_after=60.0)


class SessionLostError(LLMRetryableError):
    """A book that does not know who speaks: its entries were lost, or another try speaks for the holder now."""

    def __init__(self, place: str) -> None:
        super().__init__(
            f"The account book at {place} does not know this try any more: it was lost, as in a Redis that was restarted "
            "without persistence, or another try of the shard has begun. Run again: it is counted anew from what the "
            "stored answers have cost.",
            retry_after=1.0,
        )


class AccountBook(Protocol):
    """What a run has spent and reserved so far; every step is atomic for all processes that share the book.

    A book that cannot be read raises: unknown is never "nothing spent".
    """

    async def open(self, holder: Holder, paid: Mapping[str, Spent]) -> Balance:
        """Begin a session, forget what was reserved in former ones, which nobody is left to settle; return the sums.

        :param paid: what the answers have cost that former sessions have kept, by session. The last of them may have died
            before it told of all: then the rest is counted now.
        """
        ...

    async def state(self, holder: Holder, statement: Statement, *, limit: Spent) -> tuple[bool, Balance]:
        """Take in a statement; return whether what is wanted is reserved, and the sums now.

        What is wanted is reserved unless that takes the total above ``limit``. What was spent is counted in any case.

        :raises SessionLostError: when the holder's session is another one.
        """
        ...

    async def raise_to(self, known: Spent) -> Balance:
        """Make sure that no less than ``known`` is spent, in case the book was lost; return the sums."""
        ...

    async def aclose(self) -> None:
        """Close what is open."""
        ...
