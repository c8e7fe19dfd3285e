"""The account book of a run in Redis."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from airflow_llm_provider.engine.book import Balance, BookAwayError, Spent
from airflow_llm_provider.limiters.book_file import KEPT
from airflow_llm_provider.limiters.redis_url import as_redis, no_package, redact

if TYPE_CHECKING:
    from collections.abc import Callable

#: Seconds for one call. Short, since requests in flight wait for it too.
_TIMEOUT = 1.0
#: More than anybody reserves.
_ALL = 1e15
#: The sums, those of the holder among them, and how they are written down and returned; put before both scripts.
#: The last two arguments are the holder and the seconds for which the book is kept.
_SUMS = """
local function sum(name) return tonumber(redis.call('HGET', KEYS[1], name) or 0) end
local holder = ARGV[#ARGV - 1]
local tokens, cost, held_tokens, held_cost = sum('tokens'), sum('cost'), sum('held_tokens'), sum('held_cost')
local own_tokens, own_cost = sum('t:' .. holder), sum('c:' .. holder)
local function whole(number) return string.format('%.0f', number) end
local function exact(number) return string.format('%.17g', number) end
local function result(done)
  local now = { whole(tokens), exact(cost), whole(held_tokens), exact(held_cost) }
  if done == 1 then
    redis.call('HSET', KEYS[1], 'tokens', now[1], 'cost', now[2], 'held_tokens', now[3], 'held_cost', now[4])
    if own_tokens > 0 then
      redis.call('HSET', KEYS[1], 't:' .. holder, whole(own_tokens), 'c:' .. holder, exact(own_cost))
    else
      redis.call('HDEL', KEYS[1], 't:' .. holder, 'c:' .. holder)
    end
    redis.call('EXPIRE', KEYS[1], ARGV[#ARGV])
  end
  return { done, unpack(now) }
end
"""
#: Reserves unless the total exceeds the limit; ARGV: tokens, dollars, limits of both.
_RESERVE = """
if tokens + held_tokens + tonumber(ARGV[1]) > tonumber(ARGV[3])
  or cost + held_cost + tonumber(ARGV[2]) > tonumber(ARGV[4]) * (1 + 1e-12) then
  return result(0)
end
own_tokens, own_cost = own_tokens + tonumber(ARGV[1]), own_cost + tonumber(ARGV[2])
held_tokens, held_cost = held_tokens + tonumber(ARGV[1]), held_cost + tonumber(ARGV[2])
return result(1)
"""
#: Settles, then raises what is spent; ARGV: tokens and dollars that come free, the same that were spent, the least of
#: both.
_CHANGE = """
local free_tokens, free_cost = math.min(own_tokens, tonumber(ARGV[1])), math.min(own_cost, tonumber(ARGV[2]))
-- Whoever reserves reserves tokens; what is left of the money without them is a rounding error.
if free_tokens == own_tokens then free_cost = own_cost end
own_tokens, own_cost = own_tokens - free_tokens, own_cost - free_cost
held_tokens, held_cost = math.max(0, held_tokens - free_tokens), math.max(0, held_cost - free_cost)
if held_tokens == 0 then held_cost = 0 end
tokens = math.max(tokens + tonumber(ARGV[3]), tonumber(ARGV[5]))
cost = math.max(cost + tonumber(ARGV[4]), tonumber(ARGV[6]))
return result(1)
"""


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
            raise no_package() from error
        self._error = redis.RedisError
        self._place = redact(url)
        self._client = redis.Redis.from_url(
            as_redis(url),
            socket_timeout=_TIMEOUT,
            socket_connect_timeout=_TIMEOUT,
            # A step whose answer was lost may have been taken: it must not be taken twice.
            retry=Retry(NoBackoff(), 0),
        )
        self._key = f"airflow-llm-book:{{{name}}}"
        self._reserve = self._client.register_script(_SUMS + _RESERVE)
        self._change = self._client.register_script(_SUMS + _CHANGE)

    def reserve(self, cost: Spent, *, limit: Spent, holder: str = "") -> tuple[bool, Balance]:
        """Reserve ``cost`` unless that takes the total above ``limit``."""
        limits = (limit.tokens, min(limit.cost_usd, 1e15))
        return self._call(self._reserve, holder, cost.tokens, cost.cost_usd, *limits)

    def settle(self, reserved: Spent, spent: Spent, *, holder: str = "") -> Balance:
        """Replace a reservation."""
        numbers = (reserved.tokens, reserved.cost_usd, spent.tokens, spent.cost_usd, 0, 0)
        return self._call(self._change, holder, *numbers)[1]

    def free(self, holder: str) -> Balance:
        """Forget what a holder has reserved."""
        return self._call(self._change, holder, _ALL, _ALL, 0, 0, 0, 0)[1]

    def raise_to(self, known: Spent) -> Balance:
        """Raise what is spent."""
        return self._call(self._change, "", 0, 0, 0, 0, known.tokens, known.cost_usd)[1]

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _call(self, script: Callable[..., Any], holder: str, *numbers: float) -> tuple[bool, Balance]:
        name = hashlib.blake2b(holder.encode(), digest_size=8).hexdigest()
        try:
            done, *sums = script(keys=[self._key], args=[*map(repr, numbers), name, KEPT])
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
