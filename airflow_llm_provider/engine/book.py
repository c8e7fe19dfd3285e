"""The account book of a run's budget: what was spent, and what requests in flight may still take.

The two are kept apart: what is reserved comes free when its answer is in, what is spent never does.

Whoever spends states totals, never changes: what its try has spent so far, and what is reserved for it. So a statement whose
answer was lost is simply made again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from airflow_llm_provider.errors import LLMRetryableError

if TYPE_CHECKING:
    from collections.abc import Mapping

Name = TypeVar("Name")
Session = TypeVar("Session")


class Spent(NamedTuple):
    """Tokens and money. A tuple, since some are made for each request.

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry(Generic[Session]):
    """What a book knows of a holder.

    :param told: what its session has spent so far.
    :param reserved: what is reserved for it.
    """

    session: Session
    told: Spent = field(default_factory=Spent)
    reserved: Spent = field(default_factory=Spent)


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


class Page(Generic[Name, Session]):
    """What a book says, in memory.

    :param spent: by everybody.
    :param entries: of all holders whose try is not over.
    """

    def __init__(
        self, spent: Spent | None = None, entries: Mapping[Name, Entry[Session]] | None = None
    ) -> None:
        self.spent = spent or Spent()
        self.entries: dict[Name, Entry[Session]] = dict(entries or {})

    @property
    def balance(self) -> Balance:
        """The sums."""
        reserved = sum((entry.reserved for entry in self.entries.values()), Spent())
        return Balance(spent=self.spent, reserved=reserved)

    def open(self, name: Name, session: Session, paid: Mapping[Session, Spent]) -> None:
        """Begin a session."""
        former = self.entries.get(name)
        if former is not None:
            self.spent += at_least(paid.get(former.session, Spent()), former.told) - former.told
        self.entries[name] = Entry(session=session)

    def state(self, name: Name, session: Session, statement: Statement, *, limit: Spent) -> bool | None:
        """Take in a statement; ``None``: the session is another one."""
        entry = self.entries.get(name)
        if entry is None or entry.session != session:
            return None
        self.spent += statement.spent - entry.told
        del self.entries[name]
        fits = statement.wanted == statement.kept or not exceeds(self.balance.total + statement.wanted, limit)
        if not statement.last:
            reserved = statement.wanted if fits else statement.kept
            self.entries[name] = Entry(session=session, told=statement.spent, reserved=reserved)
        return fits


class MemoryBook:
    """The book of a run in one process."""

    def __init__(self) -> None:
        self._page: Page[str, str] = Page()

    async def open(self, holder: Holder, paid: Mapping[str, Spent]) -> Balance:
        """Begin a session."""
        self._page.open(holder.name, holder.session, paid)
        return self._page.balance

    async def state(self, holder: Holder, statement: Statement, *, limit: Spent) -> tuple[bool, Balance]:
        """Take in a statement."""
        done = self._page.state(holder.name, holder.session, statement, limit=limit)
        if done is None:
            raise SessionLostError("memory://")
        return done, self._page.balance

    async def raise_to(self, known: Spent) -> Balance:
        """Raise what is spent."""
        self._page.spent = at_least(self._page.spent, known)
        return self._page.balance

    async def aclose(self) -> None:
        """Do nothing: nothing is open."""


def exceeds(spent: Spent, limit: Spent) -> bool:
    """Tell whether a sum is above a limit, but for the last bits of floating point."""
    return spent.tokens > limit.tokens or spent.cost_usd > limit.cost_usd * (1 + 1e-12)


def at_least(spent: Spent, least: Spent) -> Spent:
    """Return the greater of both, tokens and money each."""
    return Spent(tokens=max(spent.tokens, least.tokens), cost_usd=max(spent.cost_usd, least.cost_usd))
