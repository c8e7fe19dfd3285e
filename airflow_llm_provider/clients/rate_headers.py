"""What an endpoint says about its limits: ``x-ratelimit-*`` and ``retry-after`` headers."""

from __future__ import annotations

import datetime as dt
import math
import re
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from airflow_llm_provider.engine.call import RateHint

if TYPE_CHECKING:
    from collections.abc import Mapping

#: One step of a Go duration, such as the two of ``1m30s``.
_GO_STEP = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h|d)")
_GO_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
#: Numbers from here on are moments, not durations: seconds, and milliseconds, since the epoch.
_EPOCH_SECONDS = 1e9
_EPOCH_MILLISECONDS = 1e11
_RATE_HEADERS = tuple(
    f"x-ratelimit-{what}{of}"
    for what in ("limit", "remaining", "reset")
    for of in ("-requests", "-tokens", "")
)
#: Longer waits than a year are nonsense.
_LONGEST = 366 * 86400.0


def parse_wait(text: str | None, *, now: float) -> float | None:
    """Read how long to wait, in any notation seen in the field.

    Plain seconds, Go durations (``17ms``, ``1m30s``, ``6m0s``), HTTP dates, ISO 8601 moments, seconds or milliseconds
    since the epoch. Moments that have passed are 0.

    :param now: epoch seconds.
    :return: seconds; ``None``: nothing said, or nonsense.
    """
    if not text:
        return None
    text = text.strip()
    number = _number(text)
    if number is not None:
        if number >= _EPOCH_SECONDS:
            return _sensible(max(0.0, (number / 1000 if number >= _EPOCH_MILLISECONDS else number) - now))
        return _sensible(number)
    duration = _go_duration(text)
    if duration is not None:
        return _sensible(duration)
    moment = _moment(text)
    return None if moment is None else _sensible(max(0.0, moment - now))


def retry_after(headers: Mapping[str, str], *, now: float) -> float | None:
    """Read ``retry-after-ms`` or, failing that, ``retry-after``.

    :param headers: found by name in lower case.
    :param now: epoch seconds.
    """
    milliseconds = _number(headers.get("retry-after-ms", ""))
    if milliseconds is not None and _sensible(milliseconds / 1000) is not None:
        return milliseconds / 1000
    return parse_wait(headers.get("retry-after"), now=now)


def rate_hint(headers: Mapping[str, str], *, now: float) -> RateHint | None:
    """Read the ``x-ratelimit-*`` headers; ``None``: there are none.

    :param headers: found by name in lower case.
    :param now: epoch seconds.
    """
    said = {name: value for name in _RATE_HEADERS if (value := headers.get(name)) is not None}
    if not said:
        return None

    def either(what: str) -> str | None:
        # Without a suffix the headers speak of requests, as OpenRouter's do.
        return said.get(f"x-ratelimit-{what}-requests", said.get(f"x-ratelimit-{what}"))

    return RateHint(
        limit_requests=_count(either("limit")),
        limit_tokens=_count(said.get("x-ratelimit-limit-tokens")),
        remaining_requests=_count(either("remaining")),
        remaining_tokens=_count(said.get("x-ratelimit-remaining-tokens")),
        reset_requests=parse_wait(either("reset"), now=now),
        reset_tokens=parse_wait(said.get("x-ratelimit-reset-tokens"), now=now),
    )


def exhausted_wait(hint: RateHint | None) -> float | None:
    """Say how long a refused request has to wait by its rate headers.

    A limit known to be used up counts, the later one of two; one with something left does not, however late its reset,
    which is when it is *full* again. Where nobody says what is left, the earlier reset is worth another try.
    """
    if hint is None:
        return None
    buckets = ((hint.remaining_requests, hint.reset_requests), (hint.remaining_tokens, hint.reset_tokens))
    used_up = [reset for remaining, reset in buckets if remaining == 0 and reset is not None]
    if used_up:
        return max(used_up)
    return min(
        (reset for remaining, reset in buckets if remaining is None and reset is not None), default=None
    )


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _sensible(seconds: float) -> float | None:
    return seconds if 0 <= seconds <= _LONGEST else None


def _count(text: str | None) -> int | None:
    number = _number(text) if text else None
    return None if number is None or not 0 <= number < _EPOCH_MILLISECONDS else int(number)


def _go_duration(text: str) -> float | None:
    total, position = 0.0, 0
    while position < len(text):
        step = _GO_STEP.match(text, position)
        if step is None:
            return None
        total += float(step[1]) * _GO_SECONDS[step[2]]
        position = step.end()
    return total if position else None


def _moment(text: str) -> float | None:
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        try:
            moment = parsedate_to_datetime(text)
        except (ValueError, TypeError, IndexError):
            return None
    # A moment without a zone is meant in UTC, as HTTP dates always are.
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)
    try:
        return aware.timestamp()
    except (OverflowError, ValueError):
        return None
