"""Text that any file and any request can hold."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import orjson

_SURROGATE = re.compile("[\ud800-\udfff]")
_REPLACEMENT = "\ufffd"


def clean(text: str) -> str:
    """Replace halves of surrogate pairs by U+FFFD: they are no characters, and UTF-8 has no bytes for them."""
    if text.isascii():
        return text
    try:
        text.encode()  # a tenth of the time of looking for them
    except UnicodeEncodeError:
        return _SURROGATE.sub(_REPLACEMENT, text)
    return text


def count_surrogates(text: str) -> int:
    """Count halves of surrogate pairs."""
    return 0 if text.isascii() else len(_SURROGATE.findall(text))


def json_text(value: Any) -> str:
    """Write a JSON value as compact text, numbers of any kind exactly."""
    try:
        text = orjson.dumps(value)
        if b"null" not in text or not _has_non_finite(value):
            return text.decode()
    except TypeError:
        # Integers beyond 64 bits, halves of surrogate pairs, very deep nesting.
        pass
    return clean(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def _has_non_finite(value: Any) -> bool:
    """Find NaN and infinities, which orjson writes as null."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(_has_non_finite, value.values()))
    return isinstance(value, list) and any(map(_has_non_finite, value))
