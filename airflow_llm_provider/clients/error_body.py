"""Error bodies, in the shapes that OpenAI, Azure, vLLM, llama.cpp, Ollama, OpenRouter, LiteLLM and Gemini send."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

#: What a code may look like; anything else may be free text and is not shown.
_CODE = re.compile(r"[A-Za-z][A-Za-z0-9_.\-]{0,63}")
_PARAM = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-\[\]]{0,63}")
_NAME_CODES = frozenset({"unsupported_parameter", "unknown_parameter", "extra_forbidden"})
#: How servers without such codes begin, as older Azure does.
_NAME_TEXT = re.compile(r"(?:unsupported|unrecognized|unknown|extra|unexpected)\b", re.IGNORECASE)
_VAGUE = frozenset(
    {
        *(
            "invalid_request_error",
            "badrequesterror",
            "notfounderror",
            "not_found_error",
            "api_error",
            "server_error",
        ),
        *("internal_server_error", "unknown_error", "invalid_argument", "error", "requests", "tokens"),
    }
)
_LIKE_STATUS = range(400, 600)


@dataclass(frozen=True, kw_only=True)
class ErrorBody:
    """What an error body says; ``None`` and empty: not said.

    :param codes: codes and types, the most telling first.
    :param param: request parameter at fault.
    :param status: HTTP status named in the body.
    :param message: free text, which may quote the row: never shown for a row's failure.
    :param flagged: the body lists what a moderation found in the input.
    :param retry_delay: when to try again, as Gemini says it.
    """

    codes: tuple[str, ...] = ()
    param: str | None = None
    status: int | None = None
    message: str = ""
    flagged: bool = False
    retry_delay: str | None = None

    @property
    def blames_name(self) -> bool:
        """The parameter's name is refused, whatever its value."""
        by_code = any(code.lower() in _NAME_CODES for code in self.codes)
        return by_code or _NAME_TEXT.match(self.message) is not None

    @property
    def code(self) -> str | None:
        """The most telling code; ``None``: none tells more than the status does."""
        return next((code for code in self.codes if code.lower() not in _VAGUE), None)


def load_json(raw: bytes) -> Any:
    """Parse a response body.

    :raises ValueError: when it is not JSON.
    """
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        pass
    try:
        # Takes lone surrogates in a text and NaN in a number, which servers do send.
        return json.loads(raw)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_error(value: Any) -> ErrorBody | None:
    """Find the error in a parsed body; ``None``: there is none."""
    if isinstance(value, list) and value:  # Gemini wraps it in a list
        value = value[0]
    if not isinstance(value, Mapping):
        return None
    error = value.get("error")
    if isinstance(error, str) and error:
        return ErrorBody(message=error, codes=_codes(value))
    if isinstance(error, Mapping):
        return _from_object(error)
    if isinstance(value.get("detail"), (list, str)):  # FastAPI
        return _from_detail(value["detail"])
    if (
        value.get("object") == "error"
        or "statusCode" in value
        or ("message" in value and "choices" not in value)
    ):
        return _from_object(value)
    return None


def _from_object(error: Mapping[str, Any]) -> ErrorBody:
    inner = error.get("innererror")
    metadata = error.get("metadata")
    param = error.get("param")
    details = error.get("details")
    found = [item for item in details if isinstance(item, Mapping)] if isinstance(details, list) else []
    message = error.get("message")
    return ErrorBody(
        codes=_codes(inner, error, *found),
        param=param if isinstance(param, str) and _PARAM.fullmatch(param) else None,
        status=_status(error),
        message=message if isinstance(message, str) else "",
        flagged=isinstance(metadata, Mapping) and ("flagged_input" in metadata or "reasons" in metadata),
        retry_delay=next((str(item["retryDelay"]) for item in found if "retryDelay" in item), None),
    )


def _from_detail(detail: Any) -> ErrorBody:
    if isinstance(detail, str):
        return ErrorBody(message=detail)
    first = detail[0] if detail and isinstance(detail[0], Mapping) else {}
    place = first.get("loc")
    steps = [str(step) for step in place if step != "body"] if isinstance(place, list) else []
    param = ".".join(steps)
    message = first.get("msg")
    return ErrorBody(
        codes=_codes(first),
        param=param if _PARAM.fullmatch(param) else None,
        message=message if isinstance(message, str) else "",
    )


def _codes(*sources: Any) -> tuple[str, ...]:
    found = []
    for key in ("code", "type", "reason", "status"):
        for source in sources:
            value = source.get(key) if isinstance(source, Mapping) else None
            if isinstance(value, str) and _CODE.fullmatch(value):
                found.append(value)
    return tuple(dict.fromkeys(found))


def _status(error: Mapping[str, Any]) -> int | None:
    for key in ("code", "status", "statusCode"):
        value = error.get(key)
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) == 3:  # noqa: PLR2004
            value = int(value)
        if isinstance(value, int) and value in _LIKE_STATUS:
            return value
    return None
