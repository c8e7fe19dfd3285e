"""Text that any file and any request can hold."""

from __future__ import annotations

import json
import re
from typing import Any

import orjson

_SURROGATE = re.compile("[\ud800-\udfff]")
_REPLACEMENT = "\ufffd"


def clean(text: str) -> str:
    """Replace halves of surrogate pairs by U+FFFD: they are no characters, and UTF-8 has no bytes for them."""
    return text if text.isascii() else _SURROGATE.sub(_REPLACEMENT, text)


def count_surrogates(text: str) -> int:
    """Count halves of surrogate pairs."""
    return 0 if text.isascii() else len(_SURROGATE.findall(text))


def json_text(value: Any) -> str:
    """Write a JSON value as compact text, integers of any size exactly."""
    try:
        return orjson.dumps(value).decode()
    except (TypeError, RecursionError):
        # Integers beyond 64 bits, halves of surrogate pairs, very deep nesting.
        return clean(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
