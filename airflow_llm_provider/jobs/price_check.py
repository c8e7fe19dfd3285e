"""Whether a cap in money can be kept."""

from __future__ import annotations

from airflow_llm_provider.errors import LLMInputError


def check_price(price: float | None, model: str) -> None:
    """Refuse a money cap that nobody could keep.

    :raises LLMInputError: when the price is unknown.
    """
    if price is None:
        raise LLMInputError(
            f"max_cost_usd is set, but the price of {model} at this endpoint is not known: give its prices, or use "
            "max_tokens_total instead"
        )
