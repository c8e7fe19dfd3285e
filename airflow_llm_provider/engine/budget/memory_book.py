"""The account book in memory: of one process, and what a file of others says while it is read and written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from airflow_llm_provider.engine.budget.book import Balance, SessionLostError
from airflow_llm_provider.engine.budget.spent import Spent, at_least, exceeds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_llm_provider.engine.budget.book import Holder, Statement

__all__ = ["Entry", "MemoryBook", "Page"]

Name = TypeVar("Name")
Session = TypeVar("Session")


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry(Generic[Session]):
    """What a book knows of a holder.

    :param told: what its session has spent so far.
    :param reserved: what is reserved for it.
    """

    session: Session
    told: Spent = field(default_factory=Spent)
    reserved: Spent = field(default_factory=Spent)


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
