"""US dollars of a request: from the caller's own prices, or from the price list that comes with ``genai-prices``.

Nothing is looked up over the network. What has no known price costs ``None``, never 0.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any

import genai_prices

from airflow_llm_provider.engine.usage import Usage
from airflow_llm_provider.errors import LLMInputError

#: Key of the override for every model without one of its own.
ANY_MODEL = "*"
_PER = 1_000_000
_FIELDS = {"input_per_mtok", "output_per_mtok", "cached_input_per_mtok"}
#: Seconds for which a looked-up price holds: some change with the hour.
_FRESH_SECONDS = 300.0


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenPrices:
    """Prices that do not depend on the size of the request.

    :param input: US dollars per token read.
    :param cached_input: US dollars per token read from the provider's prompt cache.
    :param output: US dollars per token written.
    """

    input: float
    cached_input: float
    output: float

    def cost(self, usage: Usage) -> float:
        """Return US dollars for one request."""
        fresh = usage.prompt_tokens - usage.cached_tokens
        return (
            fresh * self.input
            + usage.cached_tokens * self.cached_input
            + usage.completion_tokens * self.output
        )


class Pricer:
    """Prices requests at one endpoint.

    The price list knows models by name *and* endpoint, since the same name costs something else elsewhere: a model
    called ``gpt-4o`` on this machine is not OpenAI's.

    :param overrides: own prices in US dollars per million tokens by model, ``*`` for all others:
        ``{"my-model": {"input_per_mtok": 0.15, "output_per_mtok": 0.6, "cached_input_per_mtok": 0.075}}``; cached
        tokens cost as much as others unless given. Batch discounts and contracts go here too.
    :param base_url: the endpoint; ``None``: unspecified, the model's name alone decides.
    :param epoch: source of epoch seconds.
    :raises LLMInputError: when an override is not understood.
    """

    def __init__(
        self,
        overrides: Mapping[str, Mapping[str, float]] | None = None,
        *,
        base_url: str | None = None,
        epoch: Callable[[], float] = time.time,
    ) -> None:
        if overrides is not None and not isinstance(overrides, Mapping):
            raise LLMInputError(
                f"prices are a {type(overrides).__name__}: give a mapping from model names to prices"
            )
        self._overrides = {model: _override(model, prices) for model, prices in (overrides or {}).items()}
        self._base_url = base_url or None
        self._epoch = epoch
        self._known: dict[str, tuple[float, TokenPrices | Callable[[Usage], float] | None]] = {}

    def cost(self, model: str | None, usage: Usage) -> float | None:
        """Return US dollars for one request; ``None``: unknown."""
        if model is None:
            return None
        prices = self._overrides.get(model) or self._overrides.get(ANY_MODEL) or self._listed(model)
        if isinstance(prices, TokenPrices):
            return prices.cost(usage)
        return None if prices is None else prices(usage)

    def of(self, requested: str) -> Callable[[str | None, Usage], float | None]:
        """Return a price function for the requests of one model, whatever name the endpoint answers with.

        Own prices of the model asked for come first, then what is known of the one that answered, then of the one
        asked for: endpoints answer with dated names, gateways with those of others.
        """

        def price(answered: str | None, usage: Usage) -> float | None:
            if answered is None or requested in self._overrides:
                return self.cost(requested, usage)
            cost = self.cost(answered, usage)
            return self.cost(requested, usage) if cost is None else cost

        return price

    def estimate(self, model: str, *, prompt_tokens: int, completion_tokens: int) -> float | None:
        """Return US dollars for one request of that size with nothing cached; ``None``: unknown.

        Prices with tiers depend on the size of each request, so requests are estimated one by one or by their average,
        never by their sum.
        """
        return self.cost(model, Usage(prompt_tokens=prompt_tokens, completion_tokens=completion_tokens))

    def _listed(self, model: str) -> TokenPrices | Callable[[Usage], float] | None:
        now = self._epoch()
        found = self._known.get(model)
        if found is None or now >= found[0]:
            found = (now + _FRESH_SECONDS, self._look_up(model))
            self._known[model] = found
        return found[1]

    def _look_up(self, model: str) -> TokenPrices | Callable[[Usage], float] | None:
        try:
            probe = _calculate(model, self._base_url, Usage(prompt_tokens=1, completion_tokens=1))
        except (LookupError, ValueError):
            return None
        prices = {name: value for name, value in vars(probe.model_price).items() if value is not None}
        if "input_mtok" not in prices or "output_mtok" not in prices:
            return None  # priced by something else than tokens
        flat = _flat(prices)
        if flat is not None:
            return flat

        @lru_cache(maxsize=4096)
        def tiered(usage: Usage) -> float:
            return float(_calculate(model, self._base_url, usage).total_price)

        return tiered


def _flat(prices: Mapping[str, Any]) -> TokenPrices | None:
    """Read prices without tiers, so that a request is priced in a microsecond instead of sixty."""
    counted = {name: prices.get(name) for name in ("input_mtok", "output_mtok", "cache_read_mtok")}
    if "requests_kcount" in prices or any(
        not isinstance(value, Decimal | None) for value in counted.values()
    ):
        return None
    cached = counted["cache_read_mtok"]
    return TokenPrices(
        input=float(prices["input_mtok"]) / _PER,
        cached_input=float(prices["input_mtok"] if cached is None else cached) / _PER,
        output=float(prices["output_mtok"]) / _PER,
    )


def _calculate(model: str, base_url: str | None, usage: Usage) -> genai_prices.types.PriceCalculation:
    counted = genai_prices.Usage(
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
        cache_read_tokens=usage.cached_tokens,
    )
    return genai_prices.calc_price(counted, model, provider_api_url=base_url)


def _override(model: str, prices: Mapping[str, float]) -> TokenPrices:
    name = f"the price override for {model!r}"
    if not isinstance(prices, Mapping) or not {"input_per_mtok", "output_per_mtok"} <= set(prices) <= _FIELDS:
        raise LLMInputError(
            f"{name} must give input_per_mtok and output_per_mtok, and may give cached_input_per_mtok: US dollars per "
            "million tokens"
        )
    for field, value in prices.items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or value < 0:
            raise LLMInputError(
                f"{name} has {field} {value!r}: give US dollars per million tokens, 0 or more"
            )
    return TokenPrices(
        input=prices["input_per_mtok"] / _PER,
        cached_input=prices.get("cached_input_per_mtok", prices["input_per_mtok"]) / _PER,
        output=prices["output_per_mtok"] / _PER,
    )
