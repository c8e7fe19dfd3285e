"""Accounts to send on, and what of them is open: clients, limiters, the account book of the run's budget."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from airflow_llm_provider.engine.clock import Clock, SystemClock
from airflow_llm_provider.errors import LLMInputError
from airflow_llm_provider.limiters import limiter_from_url
from airflow_llm_provider.limiters.books import book_from_url
from airflow_llm_provider.prices import Pricer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from airflow_llm_provider.engine.budget.book import AccountBook
    from airflow_llm_provider.engine.call import ModelClient
    from airflow_llm_provider.engine.limiter import Limiter


@dataclass(frozen=True, kw_only=True, eq=False)
class Account:
    """One key at one endpoint.

    :param name: stands on every row that it answered, such as a connection's id; may be empty when there is only one.
    :param client: makes a client for that many requests in flight.
    :param key: names the account to whoever shares its limits, from :func:`~airflow_llm_provider.limiters.account_key`;
        empty: its limits are shared with nobody.
    :param limits: requests and tokens a minute by model, ``"*"`` for all others, as
        :func:`~airflow_llm_provider.engine.limits.rate_limits.limits_for` reads them; ``None``: not known.
    :param limiter_url: where its limits are shared; ``None``: where the options say.
    :param weight: share of the requests, relative to the other accounts'.
    :param pricer: prices at its endpoint.
    """

    name: str
    client: Callable[[int], ModelClient] = field(repr=False)
    key: str = field(default="", repr=False)
    limits: Mapping[str, Any] | None = None
    limiter_url: str | None = field(default=None, repr=False)
    weight: int = 1
    pricer: Pricer = field(default_factory=Pricer, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.weight, bool) or not isinstance(self.weight, int) or self.weight < 1:
            raise LLMInputError(
                f"the weight of account {self.name!r} is {self.weight!r}: give a whole number of at least 1"
            )


class OpenAccounts:
    """Accounts in use. What is open is made when first asked for, on the loop that uses it, and kept until the end.

    :param accounts: at least one; their names differ.
    :param concurrency: requests in flight of each.
    :param limiter_url: where limits and budget are shared; ``None``: between the processes of this machine.
    :raises LLMInputError: on no accounts, or names that do not tell them apart.
    """

    def __init__(
        self,
        accounts: Sequence[Account],
        *,
        concurrency: int,
        limiter_url: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        names = [account.name for account in accounts]
        if not names or len(set(names)) < len(names) or (len(names) > 1 and not all(names)):
            raise LLMInputError(
                f"the accounts are named {names}: give at least one, and names that tell them apart"
            )
        self.accounts = tuple(accounts)
        self._concurrency = concurrency
        self._limiter_url = limiter_url
        self._clock = clock or SystemClock()
        self._clients: dict[tuple[str, str], ModelClient] = {}
        self._limiters: dict[tuple[str, str, str], Limiter] = {}
        self._books: dict[str, AccountBook] = {}
        self._lent: ModelClient | None = None
        self._lent_limiter: Limiter | None = None

    @classmethod
    def of_client(
        cls,
        client: ModelClient,
        *,
        limiter: Limiter | None = None,
        pricer: Pricer | None = None,
        limiter_url: str | None = None,
        clock: Clock | None = None,
    ) -> Self:
        """Wrap a client that stays its owner's, as does the limiter.

        :param limiter: ``None``: only the pauses that the endpoint asks for.
        """
        account = Account(name="", client=lambda _: client, pricer=pricer or Pricer())
        opened = cls([account], concurrency=1, limiter_url=limiter_url, clock=clock)
        opened._lent, opened._lent_limiter = client, limiter
        return opened

    def client(self, account: Account, model: str) -> ModelClient:
        """Return the client for a model: each has its own, since clients find out what a model wants."""
        if self._lent is not None:
            return self._lent
        name = (account.name, model)
        if name not in self._clients:
            self._clients[name] = account.client(self._concurrency)
        return self._clients[name]

    def limiter(self, account: Account, model: str, scope: str) -> Limiter | None:
        """Return the limiter of a model on an account; ``None``: only the pauses that the endpoint asks for.

        :param scope: of the requests' spec: who has another one does not care when a parameter of these is refused.
        """
        if self._lent is not None or not (account.key or account.limits):
            return self._lent_limiter
        name = (account.name, model, scope)
        if name not in self._limiters:
            # Limits without a key are this process's own.
            url = (account.limiter_url or self._limiter_url) if account.key else "memory://"
            self._limiters[name] = limiter_from_url(
                url, account.key, model, account.limits, clock=self._clock, scope=scope
            )
        return self._limiters[name]

    def book(self, run: str) -> AccountBook:
        """Return the account book of a run's budget."""
        if run not in self._books:
            self._books[run] = book_from_url(self._limiter_url or self.accounts[0].limiter_url, run)
        return self._books[run]

    async def aclose(self) -> None:
        """Close everything, the limiters last: others may wait for what they hand over."""
        try:
            for client in self._clients.values():
                await client.aclose()
        finally:
            for limiter in self._limiters.values():
                await limiter.aclose()
            for book in self._books.values():
                await book.aclose()
            self._clients, self._limiters, self._books = {}, {}, {}
