"""What a run may spend."""

from __future__ import annotations

import math
from dataclasses import dataclass

from airflow_llm_provider.engine.budget.spent import Spent
from airflow_llm_provider.errors import LLMInputError

__all__ = ["BudgetConfig"]

#: Stands for "any number of tokens", within what every backend can add exactly.
_TOKENS_WITHOUT_END = 1 << 52


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
        if tokens is not None and tokens > _TOKENS_WITHOUT_END:
            raise LLMInputError(
                f"max_tokens_total is {tokens!r}: give at most {_TOKENS_WITHOUT_END}, or None for any number"
            )
        if cost is not None and not (_is_number(cost) and cost > 0):
            raise LLMInputError(f"max_cost_usd is {cost!r}: give a number of US dollars above 0, or None")
        for name in ("warn_share", "fallback_share"):
            value = getattr(self, name)
            if not _is_number(value) or not 0 < value <= 1:
                raise LLMInputError(f"BudgetConfig.{name} is {value!r}: give a number above 0, at most 1")

    @property
    def limit(self) -> Spent:
        """What may be spent, in a form that every backend can add to and compare with."""
        return Spent(
            tokens=_TOKENS_WITHOUT_END if self.max_tokens_total is None else self.max_tokens_total,
            cost_usd=math.inf if self.max_cost_usd is None else self.max_cost_usd,
        )

    def share(self, spent: Spent) -> float:
        """Return the used share of the budget: of tokens or of money, whichever is more."""
        shares = [0.0]
        if self.max_tokens_total is not None:
            shares.append(spent.tokens / self.max_tokens_total)
        if self.max_cost_usd is not None:
            shares.append(spent.cost_usd / self.max_cost_usd)
        return max(shares)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
