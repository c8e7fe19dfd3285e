"""What a connection says about limits: how much the account may send, and where that is shared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow_llm_provider.engine.limits.rate_limits import ANY_MODEL, RateLimits
from airflow_llm_provider.errors import LLMInputError

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Fields of the form that hold for every model without limits of its own.
FLAT_LIMITS = ("requests_per_minute", "tokens_per_minute")


def rate_limits(by_model: Mapping[str, Any], flat: Mapping[str, Any]) -> dict[str, RateLimits]:
    """Read the limits of a connection, by model name, with ``"*"`` for all other models.

    :param by_model: its ``rate_limits``: limits by model, or those of every model.
    :param flat: its fields for every model; ``None`` and empty text: not given.
    :raises LLMInputError: naming the field and the remedy.
    """
    every: dict[str, Any] = {
        name: _number(name, flat[name]) for name in FLAT_LIMITS if flat.get(name) not in (None, "")
    }
    limits: dict[str, Any] = dict(by_model)
    if limits and not all(hasattr(value, "keys") for value in limits.values()):
        limits = {ANY_MODEL: limits}
    if every and ANY_MODEL in limits:
        raise LLMInputError(
            f"its {' and '.join(every)} and its rate_limits both say what holds for every model: give one of them"
        )
    if every:
        limits[ANY_MODEL] = every
    return {
        model: RateLimits.from_mapping(value, where=f"its rate_limits of {model!r}")
        for model, value in limits.items()
    }


def limiter_url(value: str | None) -> str | None:
    """Return a URL that names a place where limits can be shared; ``None`` for ``None`` and the empty text.

    :raises LLMInputError: without the URL itself, which may hold a password.
    """
    url = (value or "").strip()
    if not url:
        return None
    from airflow_llm_provider.limiters.place import SCHEMES  # noqa: PLC0415 -- loads the limiters, for few connections

    if "://" not in url or urlsplit(url).scheme not in SCHEMES:
        raise LLMInputError(
            "its limiter_url is not understood: write memory://, file:// (every process of this machine) or "
            "redis://HOST:6379/0 (every machine)"
        )
    return url


def _number(name: str, value: object) -> float:
    """Read a number, also from its text, which is what a form may store."""
    try:
        number = float(value.strip().replace("_", "")) if isinstance(value, str) else value
    except ValueError:
        number = None
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        raise LLMInputError(f"its {name} is {value!r}: write a number above 0, or nothing")
    return number
