"""Limits as people write them: per model, a minute."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from airflow_llm_provider.engine.limits.bucket import Terms
from airflow_llm_provider.engine.limits.state import UNLIMITED
from airflow_llm_provider.errors import LLMInputError

#: Key of the limits of every model that has none of its own.
ANY_MODEL = "*"
_MINUTE = 60.0
_RESERVES = ("learned", "cap")


@dataclass(frozen=True, kw_only=True, slots=True)
class RateLimits:
    """What an account may send to one model.

    :param requests_per_minute: ``None``: not known.
    :param tokens_per_minute: prompt and answer together; ``None``: not known.
    :param burst: requests that may go out at once after a quiet time. ``None``: one hundredth of the limit, and at
        least one. Whatever the burst, no window exceeds the limit.
    :param auto: whether limits that the endpoint states in ``x-ratelimit-*`` headers count: they fill in what is not
        given, lower what is given too high, and correct for others who send on the account.
    :param reserve: how the endpoint counts the tokens of a request: ``"learned"``, by what it really took, or
        ``"cap"``, by prompt and ``max_output_tokens`` when it comes in, never given back.
    :param window: seconds in which the limit may be used once. Shorter than a minute, the limits apply in
        proportion, for an endpoint that enforces 60 a minute as 1 a second.
    :raises LLMInputError: on a value outside its bounds.
    """

    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    burst: int | None = None
    auto: bool = True
    reserve: str = "learned"
    window: float = _MINUTE

    def __post_init__(self) -> None:
        if not _is_number(self.window) or not 0 < self.window <= _MINUTE:
            raise LLMInputError(f"RateLimits.window is {self.window!r}: give seconds above 0, at most 60")
        for name in ("requests_per_minute", "tokens_per_minute"):
            value = getattr(self, name)
            if value is None:
                continue
            if not _is_number(value) or value <= 0 or value >= UNLIMITED:
                raise LLMInputError(
                    f"RateLimits.{name} is {value!r}: give a number above 0, or None if it is not known"
                )
            if value * self.window < _MINUTE:
                raise LLMInputError(
                    f"RateLimits.{name} is {value!r}, less than one in a window of {self.window:g} s: nothing could ever "
                    f"be sent; give at least {_MINUTE / self.window:g}"
                )
        if self.burst is not None and (
            isinstance(self.burst, bool) or not isinstance(self.burst, int) or self.burst < 1
        ):
            raise LLMInputError(
                f"RateLimits.burst is {self.burst!r}: give a whole number of at least 1, or None"
            )
        if not isinstance(self.auto, bool):
            raise LLMInputError(f"RateLimits.auto is {self.auto!r}: give True or False")
        if self.reserve not in _RESERVES:
            raise LLMInputError(f"RateLimits.reserve is {self.reserve!r}: give one of {', '.join(_RESERVES)}")

    @property
    def terms(self) -> Terms:
        """The same in the bucket's words."""
        share = self.window / _MINUTE
        return Terms(
            window=self.window,
            max_requests=_amount(self.requests_per_minute, share),
            max_tokens=_amount(self.tokens_per_minute, share),
            burst=float(self.burst or 0),
            learns=self.auto,
        )

    @classmethod
    def from_mapping(cls, value: Mapping[str, Any], *, where: str = "rate limits") -> Self:
        """Read limits from plain JSON values, as in the extra of a connection.

        :param where: what to call them in messages.
        :raises LLMInputError: when a field is not known or a value is out of bounds.
        """
        if not isinstance(value, Mapping):
            raise LLMInputError(f"{where} is a {type(value).__name__}: give a mapping of {_field_names(cls)}")
        unknown = sorted(set(map(str, value)) - {field.name for field in dataclasses.fields(cls)})
        if unknown:
            raise LLMInputError(f"{where} has unknown fields {', '.join(unknown)}: use {_field_names(cls)}")
        return cls(**value)


def limits_for(model: str, limits: Mapping[str, Any] | None) -> RateLimits:
    """Pick the limits of ``model``: its own, else those of ``"*"``, else none.

    :param limits: by model name, plain JSON values or :class:`RateLimits`; or the fields of one, for every model.
    :raises LLMInputError: as :meth:`RateLimits.from_mapping`.
    """
    if not limits:
        return RateLimits()
    if not isinstance(limits, Mapping):
        raise LLMInputError(
            f"limits are a {type(limits).__name__}: give a mapping, such as {{'requests_per_minute': 500}}"
        )
    if not all(isinstance(value, (Mapping, RateLimits)) for value in limits.values()):
        return RateLimits.from_mapping(limits)
    value = limits.get(model, limits.get(ANY_MODEL, {}))
    if isinstance(value, RateLimits):
        return value
    return RateLimits.from_mapping(value, where=f"rate limits of {model if model in limits else ANY_MODEL!r}")


def _amount(per_minute: float | None, share: float) -> float:
    # Whole numbers, so that sums stay exact.
    return UNLIMITED if per_minute is None else float(math.floor(per_minute * share + 1e-9))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _field_names(cls: type[RateLimits]) -> str:
    return ", ".join(field.name for field in dataclasses.fields(cls))
