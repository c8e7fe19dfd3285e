"""The account book of a run in Redis."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from airflow_llm_provider.engine.budget.book import Balance, BookAwayError, SessionLostError
from airflow_llm_provider.engine.budget.spent import Spent
from airflow_llm_provider.errors import LLMStateError
from airflow_llm_provider.limiters.books.file import KEPT
from airflow_llm_provider.limiters.redis_connection import RedisConnection

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from airflow_llm_provider.engine.budget.book import Holder, Statement

#: Seconds for one call, and how often one that failed is made again at once: a connection that Redis has closed meanwhile.
_TIMEOUT = 1.0
_RETRIES = 1
#: More than anybody may spend, and still a number that Lua adds exactly.
_ENDLESS = 1e15
#: What every step begins with. A holder's entry: its session, what that has told, what is reserved for it.
_BEGIN = """
local book, kept_for = KEYS[1], ARGV[1]
local function sum(name) return tonumber(redis.call('HGET', book, name) or 0) end
local tokens, cost, held_tokens, held_cost = sum('tokens'), sum('cost'), sum('held_tokens'), sum('held_cost')
local function whole(number) return string.format('%.0f', number) end
local function exact(number) return string.format('%.17g', number) end
local function entry_of(holder)
  local entry = redis.call('HGET', book, holder)
  if not entry then return nil, 0, 0, 0, 0 end
  local session, a, b, c, d = string.match(entry, '^(%S+) (%S+) (%S+) (%S+) (%S+)$')
  return session, tonumber(a), tonumber(b), tonumber(c), tonumber(d)
end
local function enter(holder, session, told_tokens, told_cost, own_tokens, own_cost)
  redis.call('HSET', book, holder,
    table.concat({ session, whole(told_tokens), exact(told_cost), whole(own_tokens), exact(own_cost) }, ' '))
end
local function result(done)
  -- Whoever reserves reserves tokens; what is left of the money without them is a rounding error.
  if held_tokens <= 0 then held_tokens, held_cost = 0, 0 end
  local now = { whole(tokens), exact(cost), whole(held_tokens), exact(held_cost) }
  redis.call('HSET', book, 'tokens', now[1], 'cost', now[2], 'held_tokens', now[3], 'held_cost', now[4])
  redis.call('EXPIRE', book, kept_for)
  return { done, unpack(now) }
end
"""
#: ARGV: holder, session, then of each former session its name, and tokens and dollars of the answers that it has kept.
_OPEN = """
local holder, session = ARGV[2], ARGV[3]
local former, told_tokens, told_cost, own_tokens, own_cost = entry_of(holder)
for i = 4, #ARGV, 3 do
  if ARGV[i] == former then
    tokens = tokens + math.max(0, tonumber(ARGV[i + 1]) - told_tokens)
    cost = cost + math.max(0, tonumber(ARGV[i + 2]) - told_cost)
  end
end
held_tokens, held_cost = held_tokens - own_tokens, held_cost - own_cost
enter(holder, session, 0, 0, 0, 0)
return result(1)
"""
#: ARGV: holder, session, whether it is the last, then tokens and dollars each: spent, kept, wanted, the limit.
_STATE = """
local holder, session, last = ARGV[2], ARGV[3], ARGV[4] == '1'
local n = {}
for i = 5, 12 do n[i - 4] = tonumber(ARGV[i]) end
local known, told_tokens, told_cost, own_tokens, own_cost = entry_of(holder)
if known ~= session then return { -1, '0', '0', '0', '0' } end
tokens, cost = tokens + n[1] - told_tokens, cost + n[2] - told_cost
local others_tokens, others_cost = held_tokens - own_tokens, held_cost - own_cost
local fits = ARGV[7] == ARGV[9] and ARGV[8] == ARGV[10]
  or (tokens + others_tokens + n[5] <= n[7] and cost + others_cost + n[6] <= n[8] * (1 + 1e-12))
own_tokens, own_cost = n[3], n[4]
if fits then own_tokens, own_cost = n[5], n[6] end
if last then
  own_tokens, own_cost = 0, 0
  redis.call('HDEL', book, holder)
else
  enter(holder, session, n[1], n[2], own_tokens, own_cost)
end
held_tokens, held_cost = others_tokens + own_tokens, others_cost + own_cost
return result(fits and 1 or 0)
"""
#: ARGV: the least tokens and dollars.
_RAISE = """
tokens, cost = math.max(tokens, tonumber(ARGV[2])), math.max(cost, tonumber(ARGV[3]))
return result(1)
"""


class RedisBook:
    """A book in Redis, for the processes of every machine.

    :raises LLMInputError: when the ``redis`` package is missing.
    """

    def __init__(self, url: str, name: str) -> None:
        self._redis = RedisConnection(url, timeout=_TIMEOUT, retries=_RETRIES)
        self._key = f"airflow-llm-book:{{{name}}}"
        self._open, self._state, self._raise = (
            self._redis.script(_BEGIN + step) for step in (_OPEN, _STATE, _RAISE)
        )

    async def open(self, holder: Holder, paid: Mapping[str, Spent]) -> Balance:
        """Begin a session."""
        sessions = [part for session, spent in paid.items() for part in (session, *map(repr, spent))]
        return (await self._call(self._open, _name(holder), holder.session, *sessions))[1]

    async def state(self, holder: Holder, statement: Statement, *, limit: Spent) -> tuple[bool, Balance]:
        """Take in a statement."""
        sums = (statement.spent, statement.kept, statement.wanted, limit)
        numbers = [number for each in sums for number in (each.tokens, min(each.cost_usd, _ENDLESS))]
        done, balance = await self._call(
            self._state, _name(holder), holder.session, int(statement.last), *map(repr, numbers)
        )
        if done < 0:
            raise SessionLostError(self._redis.place)
        return bool(done), balance

    async def raise_to(self, known: Spent) -> Balance:
        """Raise what is spent."""
        return (await self._call(self._raise, repr(known.tokens), repr(known.cost_usd)))[1]

    async def aclose(self) -> None:
        """Close the connections."""
        await self._redis.aclose()

    async def _call(
        self, script: Callable[[str, Sequence[Any]], Awaitable[Any]], *arguments: str | int
    ) -> tuple[int, Balance]:
        try:
            done, *sums = await script(self._key, [KEPT, *arguments])
        except self._redis.refused as error:
            raise LLMStateError(
                f"The account book at {self._redis.place} refuses our user or password: mend limiter_url"
            ) from error
        except self._redis.unreachable as error:
            raise BookAwayError(
                f"The account book at {self._redis.place} cannot be reached ({type(error).__name__}), and without it "
                "nobody knows what was spent. Bring Redis back and run again: every answer so far is kept."
            ) from error
        return int(done), _balance(*map(float, sums))


def _name(holder: Holder) -> str:
    return "h:" + hashlib.blake2b(holder.name.encode(), digest_size=8).hexdigest()


def _balance(tokens: float, cost: float, held_tokens: float, held_cost: float) -> Balance:
    return Balance(
        spent=Spent(tokens=int(tokens), cost_usd=cost),
        reserved=Spent(tokens=int(held_tokens), cost_usd=held_cost),
    )
