"""A limiter by its URL: ``memory://``, ``file://``, ``redis://``."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_llm_provider.engine.clock import Clock, SystemClock
from airflow_llm_provider.engine.limits.account import AccountLimiter
from airflow_llm_provider.engine.limits.backend import LocalBackend, MemoryStore
from airflow_llm_provider.engine.limits.rate_limits import RateLimits, limits_for
from airflow_llm_provider.engine.limits.state import LAYOUT
from airflow_llm_provider.limiters.file import FileStore
from airflow_llm_provider.limiters.place import shared_place

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_llm_provider.engine.limits.backend import Backend


def account_key(
    base_url: str, api_key: str, organization: str | None = None, project: str | None = None
) -> str:
    """Return a name of an account that tells nothing about its key: 32 hexadecimal digits.

    Whoever sends with the same key, organisation and project to the same endpoint shares one account.
    """
    parts = (base_url.rstrip("/").lower(), api_key, organization or "", project or "")
    digest = hashlib.blake2b(digest_size=16, person=b"llm-account")
    for part in parts:
        digest.update(len(part).to_bytes(4, "big") + part.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def limiter_from_url(
    url: str | None,
    account: str,
    model: str,
    limits: RateLimits | Mapping[str, Any] | None = None,
    *,
    clock: Clock | None = None,
    scope: str = "",
) -> AccountLimiter:
    """Return a limiter that shares the limits of ``model`` on ``account`` with everyone who names the same URL.

    * ``memory://`` -- with whoever uses the returned object;
    * ``file://`` or ``file:///var/lib/airflow/llm`` -- with every process of this machine, by default of this user;
    * ``redis://host:6379/0`` (also ``rediss://`` and ``unix://``) -- with every machine.

    :param url: ``None``: :data:`~airflow_llm_provider.limiters.DEFAULT_LIMITER_URL`.
    :param account: from :func:`account_key`.
    :param limits: what is known of them, for one model or by model name with ``"*"`` for the others.
    :param scope: names what the requests have in common, such as their spec: who has another one does not care when
        a parameter of these is refused.
    :raises LLMInputError: when the URL or the limits are not understood.
    :raises LLMStateError: when the file cannot be opened.
    """
    known = limits if isinstance(limits, RateLimits) else limits_for(model, limits)
    return AccountLimiter(
        _backend(
            shared_place(url), _state_name(account, model, known.window), known.window, clock or SystemClock()
        ),
        limits=known,
        clock=clock,
        scope=scope,
    )


def _backend(place: Path | str | None, name: str, window: float, clock: Clock) -> Backend:
    if place is None:
        return LocalBackend(MemoryStore(window=window, now=clock.monotonic()), window=window, clock=clock)
    if isinstance(place, Path):
        store = FileStore(place / f"{name}.limits", window=window, clock=clock)
        return LocalBackend(store, window=window, clock=clock)
    from airflow_llm_provider.limiters.redis import RedisBackend  # noqa: PLC0415 -- needs an optional package

    return RedisBackend(place, name, window=window)


def _state_name(account: str, model: str, window: float) -> str:
    """Return the name of the state: the same for whoever shares it, another one for another layout or window."""
    text = f"{account}\n{model}\n{window!r}\n{LAYOUT!r}"
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
