"""A Redis that runs Lua steps: the optional package, connections of the running loop, what goes wrong with them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from airflow_llm_provider.errors import LLMInputError
from airflow_llm_provider.limiters.redis_url import as_redis, no_package, redact

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence


class RedisConnection:
    """Connections to one Redis. They belong to the loop that opened them: another one gets others.

    :param url: ``redis://[user:password@]host:port/db``, ``rediss://``, ``unix://``; ``valkey`` for ``redis`` too.
    :param timeout: seconds for one call.
    :param retries: how often a call that failed is made again at once; ``None``: as the package does.
    :raises LLMInputError: when the ``redis`` package is missing or the URL is wrong.
    """

    def __init__(self, url: str, *, timeout: float, retries: int | None = None) -> None:
        try:
            import redis.asyncio  # noqa: PLC0415 -- an optional package
            from redis.asyncio.retry import Retry  # noqa: PLC0415
            from redis.backoff import NoBackoff  # noqa: PLC0415
        except ImportError as error:
            raise no_package() from error
        #: Where it is, for people.
        self.place = redact(url)
        #: What a call raises whose user or password is refused; to be caught before :attr:`unreachable`.
        self.refused: tuple[type[Exception], ...] = (
            redis.exceptions.AuthenticationError,
            redis.exceptions.AuthorizationError,
        )
        #: What a call raises that does not reach it.
        self.unreachable: tuple[type[Exception], ...] = (redis.exceptions.RedisError, OSError)
        options: dict[str, Any] = {"socket_timeout": timeout, "socket_connect_timeout": timeout}
        if retries is not None:
            options["retry"] = Retry(NoBackoff(), retries)
        self._make_client: Callable[[], Any] = lambda: redis.asyncio.Redis.from_url(as_redis(url), **options)
        self._loop: asyncio.AbstractEventLoop | None = None
        try:
            self._client = self._make_client()
        except ValueError as error:
            raise LLMInputError(f"limiter_url {self.place} is not understood: {error}") from None

    def script(self, text: str) -> Callable[[str, Sequence[Any]], Awaitable[Any]]:
        """Return what runs a script on a key and arguments; it raises :attr:`refused` and :attr:`unreachable`."""
        script = self._client.register_script(text)

        async def run(key: str, arguments: Sequence[Any]) -> Any:
            try:
                return await script(keys=[key], args=arguments, client=self._client_of_loop())
            except self.unreachable as error:
                # Where it connects to a socket file, the package reports a refusal as a failure to connect.
                if isinstance(error.__cause__, self.refused):
                    raise error.__cause__ from None
                raise

        return run

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    def _client_of_loop(self) -> Any:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._loop is not None:
                self._client = self._make_client()
            self._loop = loop
        return self._client
