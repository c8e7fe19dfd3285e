"""What one run may spend, in tokens and in money, over all its shards.

Pure but for its account book, which the processes of a run share: before a request goes out, the most it can cost is
written down, unless that would exceed the budget; when it is over, that is replaced by what it did cost. So a budget
is never exceeded by what is in flight, and what a process that died had in flight stays counted: it may be billed.

Only what can be known beforehand can be kept: a prompt that was counted too low goes over by the difference.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from airflow_llm_provider.engine.call import TERMINAL_KINDS, FailureKind
from airflow_llm_provider.engine.gate import PASS, Passage
from airflow_llm_provider.engine.usage import Usage
from airflow_llm_provider.errors import LLMBudgetError, LLMInputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_llm_provider.engine.call import Request
    from airflow_llm_provider.engine.events import AttemptFinished

#: Stands for "any number of tokens", within what every backend can add exactly.
_TOKENS_WITHOUT_END = 1 << 52
#: Seconds after which a request that does not fit asks again, while others in flight may still give something back.
_ASK_AGAIN = 0.25
#: Failures of which it is certain, or as good as certain, that nothing is billed: the endpoint said no.
_NOT_BILLED = TERMINAL_KINDS | {
    FailureKind.ROW,
    FailureKind.RATE_LIMITED,
    FailureKind.OVERLOADED,
    FailureKind.CONNECTION,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class BudgetConfig:
    """What a run may spend.

    :param max_tokens_total: prompt and answer tokens; ``None``: any number.
    :param max_cost_usd: US dollars; ``None``: any sum.
    :param warn_share: share of either from which on observers are warned.
    :param fallback_share: share from which on a cheaper model is to be used, if there is one.
    :raises LLMInputError: on a value outside its bounds.
    """

    max_tokens_total: int | None = None
    max_cost_usd: float | None = None
    warn_share: float = 0.8
    fallback_share: float = 0.95

    def __post_init__(self) -> None:
        tokens, cost = self.max_tokens_total, self.max_cost_usd
        if tokens is not None and (isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1):
            raise LLMInputError(f"max_tokens_total is {tokens!r}: give a whole number of at least 1, or None")
        if cost is not None and not (_is_number(cost) and cost > 0):
            raise LLMInputError(f"max_cost_usd is {cost!r}: give a number of US dollars above 0, or None")
        for name in ("warn_share", "fallback_share"):
            value = getattr(self, name)
            if not _is_number(value) or not 0 < value <= 1:
                raise LLMInputError(f"BudgetConfig.{name} is {value!r}: give a number above 0, at most 1")

    def share(self, spent: Spent) -> float:
        """Return the used share of the budget: of tokens or of money, whichever is more."""
        shares = [0.0]
        if self.max_tokens_total is not None:
            shares.append(spent.tokens / self.max_tokens_total)
        if self.max_cost_usd is not None:
            shares.append(spent.cost_usd / self.max_cost_usd)
        return max(shares)


@dataclass(frozen=True, kw_only=True, slots=True)
class Spent:
    """Tokens and money, spent and reserved together.

    :param cost_usd: US dollars, 0 where nobody asks for the cost.
    """

    tokens: int = 0
    cost_usd: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(tokens=self.tokens + other.tokens, cost_usd=self.cost_usd + other.cost_usd)

    def __sub__(self, other: Spent) -> Spent:
        return Spent(tokens=self.tokens - other.tokens, cost_usd=self.cost_usd - other.cost_usd)


class AccountBook(Protocol):
    """What a run has spent so far; every step is atomic for all processes that share the book.

    A book that cannot be read raises: unknown is never "nothing spent".
    """

    def reserve(self, cost: Spent, *, limit: Spent) -> tuple[bool, Spent]:
        """Add ``cost`` unless the sum would exceed ``limit``; return whether it was added, and the sum now."""
        ...

    def add(self, difference: Spent) -> Spent:
        """Add a difference, positive or negative, and return the sum now."""
        ...

    def raise_to(self, known: Spent) -> Spent:
        """Make sure that the sum is no less than ``known``, in case the book was lost; return it."""
        ...


class MemoryBook:
    """The book of a run in one process."""

    def __init__(self) -> None:
        self._sum = Spent()

    def reserve(self, cost: Spent, *, limit: Spent) -> tuple[bool, Spent]:
        """Add ``cost`` unless the sum would exceed ``limit``."""
        after = self._sum + cost
        if exceeds(after, limit):
            return False, self._sum
        self._sum = after
        return True, after

    def add(self, difference: Spent) -> Spent:
        """Add a difference."""
        self._sum = at_least(self._sum + difference, Spent())
        return self._sum

    def raise_to(self, known: Spent) -> Spent:
        """Raise the sum."""
        self._sum = at_least(self._sum, known)
        return self._sum


class BudgetGate:
    """Keeps a run within its budget; implements :class:`~airflow_llm_provider.engine.gate.Gate`.

    :param price: US dollars of a request by model and tokens; ``None`` when unknown.
    :param patience: seconds for which a request that does not fit waits for other processes to give something back.
    :param on_share: hears the used share when it first reaches ``warn_share``, and when it first reaches
        ``fallback_share``.
    """

    def __init__(
        self,
        config: BudgetConfig,
        book: AccountBook,
        *,
        price: Callable[[str | None, Usage], float | None] | None = None,
        patience: float = 0.0,
        on_share: Callable[[float], None] | None = None,
    ) -> None:
        self._config = config
        self._book = book
        self._price = price
        self._patience = patience
        self._on_share = on_share
        self._limit = Spent(
            tokens=_TOKENS_WITHOUT_END if config.max_tokens_total is None else config.max_tokens_total,
            cost_usd=math.inf if config.max_cost_usd is None else config.max_cost_usd,
        )
        self._reserved: dict[int, Spent] = {}
        self._told = 0.0
        self._full_since: float | None = None
        #: Spent and reserved by the whole run, as last heard.
        self.spent = Spent()

    @property
    def fallback(self) -> bool:
        """Whether a cheaper model is to be used from now on, if there is one."""
        return self._full_since is not None or self._config.share(self.spent) >= self._config.fallback_share

    def admit(self, request: Request, *, now: float) -> Passage:
        """Reserve the most that the request can cost, wait for others to give something back, or end the run."""
        try:
            worst = self._cost(
                request,
                Usage(prompt_tokens=request.prompt_tokens, completion_tokens=request.max_output_tokens),
            )
        except LLMInputError as error:
            return Passage(stop=error)
        fits, self.spent = self._book.reserve(worst, limit=self._limit)
        if fits:
            self._reserved[request.index] = worst
            self._full_since = None
            self._tell()
            return PASS
        self._full_since = now if self._full_since is None else self._full_since
        if self._reserved or now < self._full_since + self._patience:
            return Passage(wait=_ASK_AGAIN)
        return Passage(stop=LLMBudgetError(self._used_up(worst)))

    def withdraw(self, request: Request, *, now: float) -> None:  # noqa: ARG002 -- the protocol's
        """Give back what was reserved."""
        self.spent = self._book.add(Spent() - self._reserved.pop(request.index))

    def settle(self, request: Request, attempt: AttemptFinished, *, now: float) -> None:  # noqa: ARG002
        """Replace what was reserved by what was spent; where nobody said, it stays."""
        reserved = self._reserved.pop(request.index)
        spent = self._really(request, attempt, reserved)
        if spent != reserved:
            self.spent = self._book.add(spent - reserved)
            self._tell()

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
        share = self._config.share(self.spent)
        for mark in (self._config.warn_share, self._config.fallback_share):
            if self._told < mark <= share:
                self._told = mark
                if self._on_share is not None:
                    self._on_share(share)

    def _used_up(self, cost: Spent) -> str:
        parts = []
        if self.spent.tokens + cost.tokens > self._limit.tokens:
            parts.append(
                f"{self.spent.tokens:,} of max_tokens_total {self._limit.tokens:,}; the next request can take "
                f"{cost.tokens:,}"
            )
        if self.spent.cost_usd + cost.cost_usd > self._limit.cost_usd:
            parts.append(
                f"{self.spent.cost_usd:.6g} of max_cost_usd {self._limit.cost_usd:.6g}; the next request can cost "
                f"{cost.cost_usd:.6g}"
            )
        return (
            f"The run's budget is used up: {' and '.join(parts)}. Every answer so far is kept; raise the budget and run "
            "again to go on with the rest."
        )


def exceeds(spent: Spent, limit: Spent) -> bool:
    """Tell whether a sum is above a limit, but for the last bits of floating point."""
    return spent.tokens > limit.tokens or spent.cost_usd > limit.cost_usd * (1 + 1e-12)


def at_least(spent: Spent, least: Spent) -> Spent:
    """Return the greater of both, tokens and money each."""
    return Spent(tokens=max(spent.tokens, least.tokens), cost_usd=max(spent.cost_usd, least.cost_usd))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
