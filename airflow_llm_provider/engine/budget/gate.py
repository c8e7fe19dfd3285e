"""What one run may spend, in tokens and in money, over all its shards.

Before a request goes out, the most it can cost is reserved, unless that would exceed the budget; when it is over, that is
replaced by what it did cost. So a budget is never exceeded by what is in flight. What a process that died had in flight
stays reserved until the next try of the same shard, which is the only one that knows for certain that nobody is left to
settle it.

Only what is spent ends the run. What is merely reserved is waited for as long as others settle; when nobody does any
more, the run ends as one to be tried later.

Only what can be known beforehand can be kept: a prompt that was counted too low goes over by the difference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_llm_provider.engine.budget.allowance import BOOK_RETRY, Allowance
from airflow_llm_provider.engine.budget.book import Balance, BookAwayError, Holder
from airflow_llm_provider.engine.budget.spent import Spent, exceeds
from airflow_llm_provider.engine.call import TERMINAL_KINDS, FailureKind
from airflow_llm_provider.engine.gate import PASS, Passage
from airflow_llm_provider.engine.usage import Usage
from airflow_llm_provider.errors import LLMBudgetError, LLMInputError, LLMRetryableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_llm_provider.engine.budget.book import AccountBook
    from airflow_llm_provider.engine.budget.config import BudgetConfig
    from airflow_llm_provider.engine.call import Request
    from airflow_llm_provider.engine.clock import Clock
    from airflow_llm_provider.engine.events import AttemptFinished

#: Seconds after which a request that does not fit asks again, while others in flight may still give something back.
_ASK_AGAIN = 0.25
#: Seconds for which a book that cannot be asked is waited for: a restart of Redis, or a failover.
_BOOK_PATIENCE = 15.0
#: Failures of which it is certain, or as good as certain, that nothing is billed: the endpoint said no.
_NOT_BILLED = TERMINAL_KINDS | {
    FailureKind.ROW,
    FailureKind.RATE_LIMITED,
    FailureKind.OVERLOADED,
    FailureKind.CONNECTION,
}

_THEN = "Every answer so far is kept; raise the budget, or run again later, to go on with the rest."


class BudgetGate:
    """Keeps a run within its budget.

    Like a :class:`~airflow_llm_provider.engine.gate.Gate`, but :meth:`admit` may wait for the account book's answer.
    Open it before the run, and close it in the end.

    :param price: US dollars of a request by model and tokens; ``None`` when unknown.
    :param holder: in whose name is reserved.
    :param patience: seconds for which a request that does not fit waits for other processes to settle anything.
    :param on_share: hears the spent share when it first reaches ``warn_share``, and when it first reaches
        ``fallback_share``.
    """

    def __init__(
        self,
        config: BudgetConfig,
        book: AccountBook,
        *,
        clock: Clock,
        price: Callable[[str | None, Usage], float | None] | None = None,
        holder: Holder | None = None,
        patience: float = 0.0,
        on_share: Callable[[float], None] | None = None,
    ) -> None:
        self._config = config
        self._price = price
        self._patience = patience
        self._on_share = on_share
        self._limit = config.limit
        self._allowance = Allowance(book, limit=self._limit, holder=holder or Holder(), clock=clock)
        self._known: Callable[[], Spent] = Spent
        self._reserved: dict[int, Spent] = {}
        self._told = 0.0
        self._used_up = False
        self._waits_since: float | None = None
        self._seen = Spent()
        self._away_since: float | None = None

    @property
    def balance(self) -> Balance:
        """The whole run's sums, as far as is known here."""
        return self._allowance.balance

    @property
    def fallback(self) -> bool:
        """Whether a cheaper model is to be used from now on, if there is one."""
        return self._used_up or self._config.share(self._allowance.spent) >= self._config.fallback_share

    async def open(self, known: Callable[[], Spent], paid: Mapping[str, Spent] | None = None) -> None:
        """Begin a try: what a former one of the same holder has reserved comes free.

        :param known: what the run's stored answers have cost; asked for when the account book is empty, which is so
            at first, and when it was lost, also at the end of the try.
        :param paid: what the answers of the holder's former tries have cost, by session.
        :raises BookAwayError: when the book cannot be asked.
        """
        self._known = known
        if await self._allowance.open(paid or {}) == Balance():
            await self._allowance.raise_to(known())

    @property
    def untold(self) -> Spent:
        """What was spent here, and the book has not heard of: it stays reserved there."""
        return self._allowance.untold

    async def aclose(self, *, patience: float = _BOOK_PATIENCE) -> None:
        """End the try: what is left comes free. A book that was lost since is made good by what is known.

        :raises BookAwayError: when the book cannot be asked for ``patience`` seconds.
        """
        await self._allowance.aclose(self._known, patience=patience)

    async def admit(self, request: Request, *, now: float) -> Passage:
        """Reserve the most that the request can cost, wait for reservations to come free, or end the run."""
        try:
            worst = self._cost(
                request,
                Usage(prompt_tokens=request.prompt_tokens, completion_tokens=request.max_output_tokens),
            )
        except LLMInputError as error:
            return Passage(stop=error)
        try:
            fits = await self._allowance.reserve(worst)
        except BookAwayError as away:
            self._away_since = now if self._away_since is None else self._away_since
            given_up = now >= self._away_since + _BOOK_PATIENCE
            return Passage(stop=away) if given_up else Passage(wait=BOOK_RETRY)
        self._away_since = None
        self._used_up = not fits and exceeds(self._allowance.spent + worst, self._limit)
        if fits:
            self._reserved[request.index] = worst
            self._waits_since = None
            return PASS
        spent = self._allowance.spent
        if self._waits_since is None or spent != self._seen:
            self._waits_since, self._seen = now, spent
        return self._refuse(worst, now)

    def withdraw(self, request: Request, *, now: float) -> None:  # noqa: ARG002 -- as of every gate
        """Give back what was reserved."""
        self._allowance.settle(self._reserved.pop(request.index), Spent())

    def settle(self, request: Request, attempt: AttemptFinished, *, now: float) -> None:  # noqa: ARG002 -- as above
        """Replace what was reserved by what was spent; where nobody said, all of it counts as spent."""
        reserved = self._reserved.pop(request.index)
        self._allowance.settle(reserved, self._really(request, attempt, reserved))
        self._tell()

    def _refuse(self, worst: Spent, now: float) -> Passage:
        assert self._waits_since is not None  # noqa: S101 -- set by the only caller
        if self._reserved:
            return Passage(wait=_ASK_AGAIN)
        if self._used_up:
            return Passage(
                stop=LLMBudgetError(f"The run's budget is used up: {self._shortage(worst)}. {_THEN}")
            )
        if now < self._waits_since + self._patience:
            return Passage(wait=_ASK_AGAIN)
        return Passage(
            stop=LLMRetryableError(
                f"The rest of the run's budget is reserved for requests whose end nobody has told for "
                f"{now - self._waits_since:.0f} s: {self._shortage(worst)}. They are those of other tasks, or of a "
                f"task that died, whose reservations come free with its next try. {_THEN}",
                retry_after=max(self._patience, _ASK_AGAIN),
            )
        )

    def _really(self, request: Request, attempt: AttemptFinished, reserved: Spent) -> Spent:
        if attempt.usage is not None:
            cost = (
                attempt.cost_usd
                if attempt.cost_usd is not None
                else self._cost(request, attempt.usage).cost_usd
            )
            return Spent(
                tokens=attempt.usage.total_tokens, cost_usd=0.0 if self._config.max_cost_usd is None else cost
            )
        return Spent() if attempt.kind in _NOT_BILLED else reserved

    def _cost(self, request: Request, usage: Usage) -> Spent:
        if self._config.max_cost_usd is None:
            return Spent(tokens=usage.total_tokens)
        model = request.body.get("model")
        cost = None if self._price is None else self._price(model, usage)
        if cost is None:
            raise LLMInputError(
                f"max_cost_usd is set, but the price of {model} is not known: give its prices, or max_tokens_total"
            )
        return Spent(tokens=usage.total_tokens, cost_usd=cost)

    def _tell(self) -> None:
        share = self._config.share(self._allowance.spent)
        for mark in (self._config.warn_share, self._config.fallback_share):
            if self._told < mark <= share:
                self._told = mark
                if self._on_share is not None:
                    self._on_share(share)

    def _shortage(self, cost: Spent) -> str:
        spent, reserved, limit = self.balance.spent, self.balance.reserved, self._limit
        parts = []
        if self.balance.total.tokens + cost.tokens > limit.tokens:
            parts.append(
                f"{spent.tokens:,} of max_tokens_total {limit.tokens:,} are spent and {reserved.tokens:,} reserved; "
                f"the next request can take {cost.tokens:,}"
            )
        if self.balance.total.cost_usd + cost.cost_usd > limit.cost_usd:
            parts.append(
                f"{spent.cost_usd:.6g} of max_cost_usd {limit.cost_usd:.6g} are spent and {reserved.cost_usd:.6g} "
                f"reserved; the next request can cost {cost.cost_usd:.6g}"
            )
        return " and ".join(parts)
