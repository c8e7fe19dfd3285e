"""Where a Redis is, for its client and for people."""

from __future__ import annotations

from urllib.parse import urlsplit

from airflow_llm_provider.errors import LLMInputError


def no_package() -> LLMInputError:
    """Return the error for a Redis without a client."""
    return LLMInputError(
        "limiter_url is a redis:// one, but the redis package is missing: "
        "pip install 'airflow-llm-provider[redis]'"
    )


def as_redis(url: str) -> str:
    """Return a ``valkey://`` URL as the client knows it."""
    return "redis" + url.removeprefix("valkey") if url.startswith("valkey") else url


def redact(url: str) -> str:
    """Return where a URL leads, without user, password and options."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "redis://…"
    return f"{parts.scheme}://{parts.hostname or ''}{port}{parts.path}"
