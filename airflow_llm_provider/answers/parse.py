"""A JSON object out of a model's words: strictly first, then salvaged, never invented."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import json_repair
import orjson

from airflow_llm_provider.prompt import clean_text

#: Fewest marks of a Markdown fence.
_FENCE_MARKS = 3
#: What stands on the line on which a fence opens. Possessive, so that no run of blanks is ever tried in several ways.
_FENCE_LABEL = re.compile(r"[ \t]*+[\w+.-]*+[ \t]*+\n?")
#: Repairing takes time that grows faster than the text; no answer that a person asked for is longer.
_LONGEST_REPAIR = 32_000
_PYTHON_WORDS = {"None": "null", "True": "true", "False": "false"}
_WORD = re.compile(r"\b(?:None|True|False)\b")


class MalformedJSONError(ValueError):
    """The text holds no JSON object. The message quotes nothing of it."""


def parse_answer(text: str, *, salvage: bool = True) -> dict[str, Any]:
    """Find the object that a model was asked for.

    :param text: the model's words.
    :param salvage: mend what is not quite JSON: prose around the object, quotes of the wrong kind, commas too many.
        A mended object that lost or gained a letter is not accepted, so that nothing is made up.
    :raises MalformedJSONError: when there is none.
    """
    inner = _without_fence(text)
    try:
        value = _loads(inner)
    except ValueError:
        if not salvage:
            raise MalformedJSONError("is no JSON") from None
        value = _salvage(inner)
    if not isinstance(value, dict):
        raise MalformedJSONError("is JSON, but no object")
    return value


def _without_fence(text: str) -> str:
    """Return what stands in a Markdown fence around the whole text, or the text when there is none.

    In time that grows with the text and no faster: models are known to end in blanks without end.
    """
    whole = text.strip()
    mark = whole[:1]
    if mark not in ("`", "~") or not whole.endswith(mark * _FENCE_MARKS):
        return text
    inside = whole.lstrip(mark)
    if len(whole) - len(inside) < _FENCE_MARKS or not inside:
        return text
    label = _FENCE_LABEL.match(inside)
    return inside[label.end() if label else 0 :].rstrip(mark)


def _loads(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        pass
    try:
        # Takes raw line feeds within strings and escaped lone surrogates, both common.
        return _cleaned(json.loads(text, strict=False, parse_constant=_refuse_constant))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {clean_text(key): _cleaned(item) for key, item in value.items()}
    return [_cleaned(item) for item in value] if isinstance(value, list) else value


def _salvage(text: str) -> Any:
    start, stop = text.find("{"), text.rfind("}") + 1
    # Without its closing brace an object is cut, and whatever a repair would add is invention.
    if start < 0 or stop <= start:
        raise MalformedJSONError("holds no complete JSON object")
    candidate = text[start:stop]
    try:
        return _loads(candidate)
    except ValueError:
        pass
    if len(candidate) > _LONGEST_REPAIR:
        raise MalformedJSONError("is no JSON, and too long to be mended")
    try:
        repaired = _cleaned(json_repair.loads(candidate, skip_json_loads=True))
        faithful = isinstance(repaired, dict) and _same_letters(candidate, repaired)
    except (RecursionError, ValueError, TypeError):
        faithful = False
    if not faithful:
        raise MalformedJSONError("is no JSON, and cannot be mended without making something up")
    return repaired


def _same_letters(candidate: str, repaired: dict[str, Any]) -> bool:
    """Say whether a repair only moved punctuation."""
    if _has_empty(repaired) and '""' not in candidate and "''" not in candidate:
        return False
    return _letters(candidate) == _letters(json.dumps(repaired, ensure_ascii=False, allow_nan=False))


def _letters(text: str) -> Counter[str]:
    plain = _WORD.sub(lambda found: _PYTHON_WORDS[found[0]], text)
    return Counter(character for character in plain if character.isalnum())


def _has_empty(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_has_empty(item) for item in value.values())
    if isinstance(value, list):
        return any(_has_empty(item) for item in value)
    return bool(value == "")
