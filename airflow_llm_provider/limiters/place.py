"""Where limits and budgets are shared, as ``limiter_url`` names it: the one place that knows its schemes."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from airflow_llm_provider.errors import LLMInputError
from airflow_llm_provider.limiters.file import default_directory

#: Where limits are shared unless something else is set: between all processes of this machine.
DEFAULT_LIMITER_URL = "file://"
_REDIS_SCHEMES = frozenset({"redis", "rediss", "unix", "valkey", "valkeys"})
SCHEMES = frozenset({"memory", "file"}) | _REDIS_SCHEMES


def shared_place(url: str | None) -> Path | str | None:
    """Return the directory of a ``file://``, the URL of a Redis, or ``None`` for ``memory://``, which nobody shares.

    :param url: ``None``: :data:`DEFAULT_LIMITER_URL`.
    :raises LLMInputError: when the URL is not understood.
    """
    url = url or DEFAULT_LIMITER_URL
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise LLMInputError(f"limiter_url is no URL: {error}") from None
    if parts.scheme == "memory":
        return None
    if parts.scheme in _REDIS_SCHEMES:
        return url
    if parts.scheme != "file":
        raise LLMInputError(
            f"limiter_url has the scheme {parts.scheme!r}: use memory://, file:// (every process of this machine) or "
            "redis:// (every machine)"
        )
    if parts.netloc not in {"", "localhost"}:
        raise LLMInputError(
            f"limiter_url names the host {parts.netloc!r}: a file limiter is for this machine; give three slashes, "
            "as in file:///var/lib/airflow/llm"
        )
    return Path(unquote(parts.path)) if parts.path not in {"", "/"} else default_directory()
