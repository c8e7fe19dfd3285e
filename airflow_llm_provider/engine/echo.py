"""Whether an endpoint's words repeat the request: those never reach a log, an exception or XCom."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: Characters in a row that two texts have in common by accident at most rarely.
_RUN = 12
#: A whole message shorter than that repeats by accident.
_SHORTEST = 4


def echoes(words: str, body: Mapping[str, Any]) -> bool:
    """Tell whether ``words`` hold a piece of the messages of a request.

    Case, white space and the escapes of JSON do not hide it.
    """
    said = _plain(words)
    runs = {said[start : start + _RUN] for start in range(len(said) - _RUN + 1)}
    for text in _texts(body.get("messages")):
        for form in (_plain(text), _plain(json.dumps(text)[1:-1])):
            if len(form) < _RUN:
                if len(form) >= _SHORTEST and form in said:
                    return True
            elif any(run in form for run in runs):
                return True
    return False


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts of messages, whatever their shape, but not their roles."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            if key not in {"role", "type"}:
                yield from _texts(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item)
