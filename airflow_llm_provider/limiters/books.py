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

from airflow_llm_provider.engine.book import Balance, BookAwayError, MemoryBook, Spent, at_least, exceeds
from airflow_llm_provider.errors import LLMInputError, LLMStateError
from airflow_llm_provider.limiters.file import default_directory, open_private
from airflow_llm_provider.limiters.redis import as_redis, redact

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_llm_provider.engine.book import AccountBook

#: A mark of ours, tokens and US dollars that are spent, the same that are reserved, and their checksum.
_LAYOUT = struct.Struct("<8sqdqd8s")
_SUMS = struct.Struct("<qdqd")
_MARK = b"llmbook2"
#: Seconds for which a book is kept after its last entry.
_KEPT = 30 * 86_400
_SUFFIX = ".book"
#: Seconds for one call to Redis. Short, since requests in flight wait for it too.
_REDIS_TIMEOUT = 1.0
#: Seconds for which another process may hold the lock, which it needs for microseconds, and between attempts at it.
_LOCK_TIMEOUT = 1.0
_LOCK_PAUSE = 0.001
#: The sums, and how they are written down and returned; put before both scripts.
_SUMS_LUA = """
local function sum(name) return tonumber(redis.call('HGET', KEYS[1], name) or 0) end
local tokens, cost, held_tokens, held_cost = sum('tokens'), sum('cost'), sum('held_tokens'), sum('held_cost')
local function result(done)
  local now = { string.format('%.0f', tokens), string.format('%.17g', cost),
    string.format('%.0f', held_tokens), string.format('%.17g', held_cost) }
  if done == 1 then
    redis.call('HSET', KEYS[1], 'tokens', now[1], 'cost', now[2], 'held_tokens', now[3], 'held_cost', now[4])
    redis.call('EXPIRE', KEYS[1], ARGV[#ARGV])
  end
  return { done, unpack(now) }
end
"""
#: Reserves unless the total exceeds the limit; ARGV: tokens, dollars, limits of both, seconds to keep it.
_RESERVE = """
if tokens + held_tokens + tonumber(ARGV[1]) > tonumber(ARGV[3])
  or cost + held_cost + tonumber(ARGV[2]) > tonumber(ARGV[4]) * (1 + 1e-12) then
  return result(0)
end
held_tokens, held_cost = held_tokens + tonumber(ARGV[1]), held_cost + tonumber(ARGV[2])
return result(1)
"""
#: Settles, then raises what is spent; ARGV: tokens and dollars that come free, the same that were spent, the least of
#: both, seconds to keep it.
_CHANGE = """
held_tokens = math.max(0, held_tokens - tonumber(ARGV[1]))
held_cost = math.max(0, held_cost - tonumber(ARGV[2]))
tokens = math.max(tokens + tonumber(ARGV[3]), tonumber(ARGV[5]))
cost = math.max(cost + tonumber(ARGV[4]), tonumber(ARGV[6]))
return result(1)
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

    def reserve(self, cost: Spent, *, limit: Spent) -> tuple[bool, Balance]:
        """Reserve ``cost`` unless that takes the total above ``limit``."""
        with self._open() as file:
            before = self._read(file)
            if exceeds(before.total + cost, limit):
                return False, before
            return True, self._write(file, Balance(spent=before.spent, reserved=before.reserved + cost))

    def settle(self, reserved: Spent, spent: Spent) -> Balance:
        """Replace a reservation."""
        return self._change(lambda before: before.settle(reserved, spent))

    def raise_to(self, known: Spent) -> Balance:
        """Raise what is spent."""
        return self._change(
            lambda before: Balance(spent=at_least(before.spent, known), reserved=before.reserved)
        )

    def _change(self, change: Callable[[Balance], Balance]) -> Balance:
        with self._open() as file:
            return self._write(file, change(self._read(file)))

    @contextlib.contextmanager
    def _open(self) -> Any:
        # Opened each time: that leaves no state which a fork or a deleted file could upset.
        try:
            file = os.open(self._path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            file = open_private(self._path)
        except OSError as error:
            raise self._unusable(error) from error
        try:
            self._lock(file)
            yield file
        except OSError as error:
            raise self._unusable(error) from error
        finally:
            os.close(file)

    def _lock(self, file: int) -> None:
        deadline = time.monotonic() + _LOCK_TIMEOUT
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise BookAwayError(
                        f"Another process holds the lock of the account book {self._path}, which is needed for "
                        "microseconds, so that process is probably stopped: continue or end it, and run again. Every "
                        "answer so far is kept.",
                        unchanged=True,
                    ) from None
                time.sleep(_LOCK_PAUSE)
            else:
                return

    def _unusable(self, error: OSError) -> LLMStateError:
        return LLMStateError(
            f"The account book {self._path} of this run's budget cannot be used ({error.strerror}). Make it writable for "
            "the user that Airflow runs as, or set another limiter_url."
        )

    def _read(self, file: int) -> Balance:
        content = os.pread(file, _LAYOUT.size + 1, 0)
        if not content:
            return Balance()
        try:
            mark, *sums, checksum = _LAYOUT.unpack(content)
        except struct.error:
            mark, sums, checksum = b"", [0, 0.0, 0, 0.0], b""
        if mark != _MARK or checksum != _checksum(sums):
            raise LLMStateError(
                f"The account book {self._path} of this run's budget is damaged, so nobody knows what was spent. Delete "
                "it to count anew from what the results say, and run again."
            )
        return _balance(*sums)

    def _write(self, file: int, balance: Balance) -> Balance:
        spent, reserved = balance.spent, balance.reserved
        sums = (spent.tokens, spent.cost_usd, reserved.tokens, reserved.cost_usd)
        os.pwrite(file, _LAYOUT.pack(_MARK, *sums, _checksum(sums)), 0)
        return balance


class RedisBook:
    """A book in Redis, for the processes of every machine.

    :raises LLMInputError: when the ``redis`` package is missing.
    """

    def __init__(self, url: str, name: str) -> None:
        try:
            import redis  # noqa: PLC0415 -- an optional package
            from redis.backoff import NoBackoff  # noqa: PLC0415
            from redis.retry import Retry  # noqa: PLC0415
        except ImportError as error:
            raise LLMInputError(
                "limiter_url is a redis:// one, but the redis package is missing: "
                "pip install 'airflow-llm-provider[redis]'"
            ) from error
        self._error = redis.RedisError
        self._place = redact(url)
        self._client = redis.Redis.from_url(
            as_redis(url),
            socket_timeout=_REDIS_TIMEOUT,
            socket_connect_timeout=_REDIS_TIMEOUT,
            # A step whose answer was lost may have been taken: it must not be taken twice.
            retry=Retry(NoBackoff(), 0),
        )
        self._key = f"airflow-llm-book:{{{name}}}"
        self._reserve = self._client.register_script(_SUMS_LUA + _RESERVE)
        self._change = self._client.register_script(_SUMS_LUA + _CHANGE)

    def reserve(self, cost: Spent, *, limit: Spent) -> tuple[bool, Balance]:
        """Reserve ``cost`` unless that takes the total above ``limit``."""
        limits = (limit.tokens, min(limit.cost_usd, 1e15))
        return self._call(self._reserve, cost.tokens, cost.cost_usd, *limits)

    def settle(self, reserved: Spent, spent: Spent) -> Balance:
        """Replace a reservation."""
        numbers = (reserved.tokens, reserved.cost_usd, spent.tokens, spent.cost_usd, 0, 0)
        return self._call(self._change, *numbers)[1]

    def raise_to(self, known: Spent) -> Balance:
        """Raise what is spent."""
        return self._call(self._change, 0, 0, 0, 0, known.tokens, known.cost_usd)[1]

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _call(self, script: Callable[..., Any], *numbers: float) -> tuple[bool, Balance]:
        try:
            done, *sums = script(keys=[self._key], args=[*map(repr, numbers), _KEPT])
        except (self._error, OSError) as error:
            raise BookAwayError(
                f"The account book at {self._place} cannot be reached ({type(error).__name__}), and without it nobody "
                "knows what was spent. Bring Redis back and run again: every answer so far is kept.",
                unchanged=False,
            ) from error
        return bool(done), _balance(*map(float, sums))


def _balance(tokens: float, cost: float, held_tokens: float, held_cost: float) -> Balance:
    return Balance(
        spent=Spent(tokens=int(tokens), cost_usd=cost),
        reserved=Spent(tokens=int(held_tokens), cost_usd=held_cost),
    )


def _checksum(sums: Sequence[float]) -> bytes:
    return hashlib.blake2b(_SUMS.pack(*sums), digest_size=8).digest()


def _forget_old(directory: Path) -> None:
    """Delete books that nobody has written to for a month."""
    oldest = time.time() - _KEPT
    with contextlib.suppress(OSError):
        for path in directory.glob(f"*{_SUFFIX}"):
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < oldest:
                    path.unlink()
