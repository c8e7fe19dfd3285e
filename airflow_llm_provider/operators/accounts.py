"""The connections that a task sends on: one, or several whose accounts take turns."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from airflow_llm_provider.errors import LLMInputError
from airflow_llm_provider.hooks.llm import LLMHook

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow_llm_provider.prices import Pricer
    from airflow_llm_provider.spec import CompletionSpec


def check_one_of_conn_ids(conn_id: Any, conn_ids: Any) -> None:
    """Refuse one connection and several at the same time.

    :raises LLMInputError: naming both arguments.
    """
    if conn_ids is not None and conn_id not in (None, LLMHook.default_conn_name):
        raise LLMInputError(
            f"conn_id is {conn_id!r} and conn_ids is {conn_ids!r}: give one of them, conn_ids for several connections"
        )


def check_fallback(fallback_model: str | None, model: str) -> None:
    """Refuse a model to fall back to that is the model itself, as the shards would.

    :raises LLMInputError: naming the model.
    """
    if fallback_model == model:
        raise LLMInputError(f"fallback_model is {model!r}, the model itself: name another, cheaper one")


def spec_of(spec: CompletionSpec, arguments: Mapping[str, Any]) -> CompletionSpec:
    """Return the spec with the model of ``arguments``, if they name one.

    :raises LLMInputError: when the model to fall back to is the model itself.
    """
    if arguments["model"] is not None:
        spec = dataclasses.replace(spec, model=arguments["model"])
    check_fallback(arguments["fallback_model"], spec.model)
    return spec


def hooks_of(arguments: Mapping[str, Any]) -> dict[LLMHook, int]:
    """Return the hooks of ``conn_ids``, else of ``conn_id``, with their weights; none without either.

    :raises LLMInputError: when a connection does not exist or has a wrong field, or the option ``[llm] limiter_url``.
    """
    weights = arguments["conn_ids"]
    if weights is None:
        weights = {} if arguments["conn_id"] is None else {arguments["conn_id"]: 1}
    hooks = {LLMHook(conn_id): weight for conn_id, weight in weights.items()}
    for hook in hooks:
        # Read here, so that what is wrong with a connection is found before anything else is done.
        _ = hook.limiter_url
    return hooks


def pricers_of(hooks: Mapping[LLMHook, int]) -> list[Pricer]:
    """Return the prices at the endpoint of every connection; those of the price list without any."""
    from airflow_llm_provider.prices import Pricer  # noqa: PLC0415 -- loads a price list

    return [Pricer(hook.endpoint.prices, base_url=hook.endpoint.base_url) for hook in hooks] or [Pricer()]


def check_cap(max_cost_usd: float | None, models: Iterable[str | None], pricers: Iterable[Pricer]) -> None:
    """Refuse a cap on money where a price is not known.

    :param models: the model, and the one to fall back to, if there is one.
    :raises LLMInputError: naming the model and the ways out.
    """
    from airflow_llm_provider.jobs.price_check import check_price  # noqa: PLC0415 -- loads pyarrow

    if max_cost_usd is None:
        return
    pricers = list(pricers)
    for model in filter(None, models):
        for pricer in pricers:
            check_price(price_of_one(pricer, model), model)


def price_of_one(pricer: Pricer, model: str) -> float | None:
    """Return what the smallest request costs; ``None``: the model's price is not known."""
    return pricer.estimate(model, prompt_tokens=1, completion_tokens=1)
