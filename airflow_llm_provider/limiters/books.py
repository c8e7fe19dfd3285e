"""The account book of a run's budget, shared between its processes: a small file, or a hash in Redis.

Books are kept for a month after their last entry. One that was lost (a reboot, a flushed Redis) is made good by
``raise_to`` from what the run's results say; one that is damaged is an error, since unknown is not "nothing spent".
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from airflow_llm_provider.engine.budget import MemoryBook, Spent, at_least, exceeds
from airflow_llm_provider.errors import LLMInputError, LLMRetryableError, LLMStateError
from airflow_llm_provider.limiters.file import default_directory, open_private
from airflow_llm_provider.limiters.redis import as_redis, redact

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_llm_provider.engine.budget import AccountBook

#: A mark of ours, tokens, US dollars, and their checksum.
_LAYOUT = struct.Struct("<8sqd8s")
_MARK = b"llmbook1"
#: Seconds for which a book is kept after its last entry.
_KEPT = 30 * 86_400
_SUFFIX = ".book"
_REDIS_TIMEOUT = 5.0
#: Adds to the sum unless that exceeds the limit; ARGV: tokens, dollars, limits of both, seconds to keep it.
_RESERVE = """
local had_tokens = tonumber(redis.call('HGET', KEYS[1], 'tokens') or 0)
local had_cost = tonumber(redis.call('HGET', KEYS[1], 'cost') or 0)
local tokens, cost = had_tokens + tonumber(ARGV[1]), had_cost + tonumber(ARGV[2])
local fits = tokens <= tonumber(ARGV[3]) and cost <= tonumber(ARGV[4]) * (1 + 1e-12)
if fits then
  redis.call('HSET', KEYS[1], 'tokens', string.format('%.0f', tokens), 'cost', string.format('%.17g', cost))
  redis.call('EXPIRE', KEYS[1], ARGV[5])
else
  tokens, cost = had_tokens, had_cost
end
return { fits and 1 or 0, string.format('%.0f', tokens), string.format('%.17g', cost) }
"""
#: Adds a difference, then raises the sum; ARGV: tokens, dollars, the least of both, seconds to keep it.
_CHANGE = """
local tokens = tonumber(redis.call('HGET', KEYS[1], 'tokens') or 0) + tonumber(ARGV[1])
local cost = tonumber(redis.call('HGET', KEYS[1], 'cost') or 0) + tonumber(ARGV[2])
tokens, cost = math.max(tokens, tonumber(ARGV[3])), math.max(cost, tonumber(ARGV[4]))
redis.call('HSET', KEYS[1], 'tokens', string.format('%.0f', tokens), 'cost', string.format('%.17g', cost))
redis.call('EXPIRE', KEYS[1], ARGV[5])
return { 1, string.format('%.0f', tokens), string.format('%.17g', cost) }
"""


def book_from_url(url: str | None, run: str) -> AccountBook:
    """Return the book of one run, where ``limiter_url`` says.

    :param url: ``memory://``, ``file://``, ``redis://``; ``None``: ``file://``.
    :param run: names the run, such as its plan's id.
    :raises LLMInputError: when the URL is not understood.
    """
    parts = urlsplit(url or "file://")
    name = hashlib.blake2b(run.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    if parts.scheme == "memory":
        return MemoryBook()
    if parts.scheme == "file":
        directory = Path(unquote(parts.path)) if parts.path not in {"", "/"} else default_directory()
        return FileBook(directory / f"{name}{_SUFFIX}")
    if parts.scheme in {"redis", "rediss", "unix", "valkey", "valkeys"}:
        return RedisBook(str(url), name)
    raise LLMInputError(f"limiter_url has the scheme {parts.scheme!r}: use memory://, file:// or redis://")


class FileBook:
    """A book in a file of this machine, under a file lock.

    :raises LLMStateError: when the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._open():
            pass
        _forget_old(path.parent)

    def reserve(self, cost: Spent, *, limit: Spent) -> tuple[bool, Spent]:
        """Add ``cost`` unless the sum would exceed ``limit``."""
        with self._open() as file:
            before = self._read(file)
            after = before + cost
            if exceeds(after, limit):
                return False, before
            return True, self._write(file, after)

    def add(self, difference: Spent) -> Spent:
        """Add a difference."""
        return self._change(lambda before: at_least(before + difference, Spent()))

    def raise_to(self, known: Spent) -> Spent:
        """Raise the sum."""
        return self._change(lambda before: at_least(before, known))

    def _change(self, change: Callable[[Spent], Spent]) -> Spent:
        with self._open() as file:
            return self._write(file, change(self._read(file)))

    @contextlib.contextmanager
    def _open(self) -> Any:
        # Opened each time: that leaves no state which a fork or a deleted file could upset.
        try:
            file = os.open(self._path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            file = open_private(self._path)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
        finally:
            os.close(file)

    def _read(self, file: int) -> Spent:
        content = os.pread(file, _LAYOUT.size + 1, 0)
        if not content:
            return Spent()
        try:
            mark, tokens, cost, checksum = _LAYOUT.unpack(content)
        except struct.error:
            mark, tokens, cost, checksum = b"", 0, 0.0, b""
        if mark != _MARK or checksum != _checksum(tokens, cost):
            raise LLMStateError(
                f"The account book {self._path} of this run's budget is damaged, so nobody knows what was spent. Delete "
                "it to count anew from what the results say, and run again."
            )
        return Spent(tokens=tokens, cost_usd=cost)

    def _write(self, file: int, spent: Spent) -> Spent:
        os.pwrite(
            file,
            _LAYOUT.pack(_MARK, spent.tokens, spent.cost_usd, _checksum(spent.tokens, spent.cost_usd)),
            0,
        )
        return spent


class RedisBook:
    """A book in Redis, for the processes of every machine.

    :raises LLMInputError: when the ``redis`` package is missing.
    """

    def __init__(self, url: str, name: str) -> None:
        try:
            import redis  # noqa: PLC0415 -- an optional package
        except ImportError as error:
            raise LLMInputError(
                "limiter_url is a redis:// one, but the redis package is missing: "
                "pip install 'airflow-llm-provider[redis]'"
            ) from error
        self._error = redis.RedisError
        self._place = redact(url)
        self._client = redis.Redis.from_url(
            as_redis(url), socket_timeout=_REDIS_TIMEOUT, socket_connect_timeout=_REDIS_TIMEOUT
        )
        self._key = f"airflow-llm-book:{{{name}}}"
        self._reserve = self._client.register_script(_RESERVE)
        self._change = self._client.register_script(_CHANGE)

    def reserve(self, cost: Spent, *, limit: Spent) -> tuple[bool, Spent]:
        """Add ``cost`` unless the sum would exceed ``limit``."""
        limits = (limit.tokens, min(limit.cost_usd, 1e15))
        return self._call(self._reserve, cost.tokens, cost.cost_usd, *limits)

    def add(self, difference: Spent) -> Spent:
        """Add a difference."""
        return self._call(self._change, difference.tokens, difference.cost_usd, 0, 0)[1]

    def raise_to(self, known: Spent) -> Spent:
        """Raise the sum."""
        return self._call(self._change, 0, 0, known.tokens, known.cost_usd)[1]

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _call(self, script: Callable[..., Any], *numbers: float) -> tuple[bool, Spent]:
        try:
            done, tokens, cost = script(keys=[self._key], args=[*map(repr, numbers), _KEPT])
        except (self._error, OSError) as error:
            raise LLMRetryableError(
                f"The account book at {self._place} cannot be reached ({type(error).__name__}), and without it nobody "
                "knows what was spent. Bring Redis back and run again: every answer so far is kept.",
                retry_after=60.0,
            ) from error
        return bool(done), Spent(tokens=int(tokens), cost_usd=float(cost))


def _checksum(tokens: int, cost: float) -> bytes:
    return hashlib.blake2b(struct.pack("<qd", tokens, cost), digest_size=8).digest()


def _forget_old(directory: Path) -> None:
    """Delete books that nobody has written to for a month."""
    oldest = time.time() - _KEPT
    with contextlib.suppress(OSError):
        for path in directory.glob(f"*{_SUFFIX}"):
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < oldest:
                    path.unlink()
