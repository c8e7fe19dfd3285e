"""A way to the model: one account's client, with the limits and gates that are its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_llm_provider.errors import LLMInputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_llm_provider.engine.call import ModelClient
    from airflow_llm_provider.engine.gate import Gate
    from airflow_llm_provider.engine.limiter import Limiter
    from airflow_llm_provider.engine.usage import Usage


@dataclass(frozen=True, kw_only=True, eq=False)
class Route:
    """A way to the model.

    :param client: sends one request; stays open, its owner closes it.
    :param name: of the account, for the row and the log; ``None``: there is only one.
    :param limiter: the account's limits for the model; ``None``: none, but a refusal for the rate pauses this route.
    :param gates: consulted before each attempt on this route, in this order.
    :param price: US dollars of one completion; without it no cost is known.
    :param weight: share of the requests, relative to the other routes'.
    :param model: model to ask instead of the one that the request names; ``None``: that one.
    :param fallback: whether the route is only for when the budget is nearly used up, or no other route answers.
    :raises LLMInputError: on a weight below 1.
    """

    client: ModelClient
    name: str | None = None
    limiter: Limiter | None = None
    gates: tuple[Gate, ...] = ()
    price: Callable[[str | None, Usage], float | None] | None = None
    weight: int = 1
    model: str | None = None
    fallback: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.weight, bool) or not isinstance(self.weight, int) or self.weight < 1:
            raise LLMInputError(
                f"the weight of account {self.name!r} is {self.weight!r}: give a whole number of at least 1"
            )
