"""One state for every machine: a key in Redis, changed by one Lua call on the server's time.

A Redis that cannot be reached is waited for a little and is then an error that passes, never "no limit". One that lost
its data (restarted without persistence, flushed) is noticed by senders that were there before: they wait one window.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from importlib import resources
from typing import TYPE_CHECKING, Any

from airflow_llm_provider.engine.limits import bucket, hints, pace, state
from airflow_llm_provider.engine.limits.bucket import Grant, Halted, Later, TooLarge
from airflow_llm_provider.errors import LLMRetryableError, LLMStateError
from airflow_llm_provider.limiters.redis_connection import RedisConnection

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_llm_provider.engine.call import RateHint
    from airflow_llm_provider.engine.limits.bucket import Answer, Terms

#: Seconds for one call.
_TIMEOUT = 5.0
#: Seconds for which a Redis that cannot be reached is waited for: a restart or a failover.
_PATIENCE = 15.0
#: Seconds between attempts.
_RETRY = 0.25
#: Seconds for which an answer tells whether there is a pause.
_FRESH = 0.05
#: Corrections that are put off until the next call: no more than this many, no longer than these seconds.
_MOST_PUT_OFF = 32
_LONGEST_PUT_OFF = 0.25
_CONSTANTS = {
    **{
        name: getattr(state, name)
        for name in ("SLOTS", "HELD", "RING", "HEADER", "LENGTH", "UNLIMITED", "LAYOUT")
    },
    **{name: getattr(state, name) for name in ("FIRST_RATE", "FIRST_CALM", "KNOWN_CALM")},
    **{
        name: getattr(pace, name)
        for name in ("CAUTION", "KNOWN_CAUTION", "DEEPEST_CUT", "BARREN_RATE", "LOWEST_RATE", "DOUBLING")
    },
    **{
        name: getattr(pace, name)
        for name in (
            "DOUBLINGS",
            "CONFIRMED",
            "TELLING_STREAK",
            "FADING",
            "LONGEST_CALM",
            "SHORTEST_CYCLE",
            "IDLE",
        )
    },
    "LONGEST_PAUSE": pace.LONGEST_PAUSE,
    "BURST_SHARE": bucket.BURST_SHARE,
    "KINDS": bucket.KINDS,
    "TRUST": bucket.TRUST,
    "LEARNED_BURST": bucket.LEARNED_BURST,
    "TOLERANCE": hints.TOLERANCE,
}


def script() -> str:
    """Return the Lua text: names and constants of :mod:`~airflow_llm_provider.engine.limits.state`, then the steps."""
    fields = [f"local {name} = {position}" for position, name in enumerate(state.FIELDS, start=1)]
    constants = [f"local {name} = {value!r}" for name, value in _CONSTANTS.items()]
    folder = resources.files("airflow_llm_provider.limiters")
    texts = [folder.joinpath(name).read_text("utf-8") for name in ("ledger.lua", "bucket.lua")]
    return "\n".join([*fields, *constants, *texts])


class RedisBackend:
    """Runs the steps in Redis, in order, one call at a time: what gathers meanwhile goes with the next.

    :param url: ``redis://[user:password@]host:port/db``, ``rediss://``, ``unix://``.
    :param name: name of the state.
    :param patience: seconds for which a Redis that cannot be reached is waited for.
    :param now: replaces the server's time, in tests.
    :raises LLMInputError: when the ``redis`` package is missing or the URL is wrong.
    """

    def __init__(
        self,
        url: str,
        name: str,
        *,
        window: float = 60.0,
        patience: float = _PATIENCE,
        now: Callable[[], float] | None = None,
    ) -> None:
        self._redis = RedisConnection(url, timeout=_TIMEOUT)
        self._run = self._redis.script(script())
        self._key = f"airflow-llm-limits:{{{name}}}"
        self._window = window
        self._patience = patience
        self._now = now
        self._seen = 0.0
        self._heard = 0.0
        self._interrupted = -math.inf
        self._put_off: list[list[Any]] = []
        self._put_off_since = 0.0
        self._asked: list[tuple[list[Any], asyncio.Future[tuple[float, list[Any]]]]] = []
        self._sender: asyncio.Task[None] | None = None

    async def take(
        self, terms: Terms, wanted: Sequence[tuple[float, float]], *, horizon: float, since: float
    ) -> list[Answer]:
        """Take requests and their tokens."""
        known = (terms.max_requests, terms.max_tokens, terms.burst, terms.learns)
        now, answers = await self._call(["take", *known, wanted, horizon, since])
        return [_answer(answer, now) for answer in answers]

    async def settle(self, slot: int, requests: float, tokens: float) -> None:
        """Correct a grant, with the next call."""
        await self._put(["settle", slot, requests, tokens])

    async def give_back(self, grant: Grant) -> None:
        """Undo a grant, with the next call."""
        await self._put(["give_back", grant.slot, grant.tokens, grant.made])

    def now(self) -> float:
        """Return the server's time, reckoned from its last answer."""
        return self._now() if self._now else self._seen + time.monotonic() - self._heard

    async def overtaken(self, grant: Grant) -> bool:
        """Tell whether a pause or a halt began after the grant was made: by the last answer, if it is fresh."""
        if self._now or time.monotonic() - self._heard > _FRESH:
            await self._call([])
        return self._interrupted >= grant.made

    async def delay(self, grant: Grant, now: float) -> Grant:
        """Write a grant down where its request really goes out, with the next call."""
        slot = math.floor(now / (self._window / state.SLOTS))
        if slot <= grant.slot:
            return grant
        await self._put(["delay", grant.slot, slot, grant.tokens])
        return grant._replace(at=now, slot=slot)

    async def refuse(self, terms: Terms, *, granted_at: float | None, seconds: float) -> None:
        """Hold back everyone, and learn."""
        granted = False if granted_at is None else granted_at
        await self._call(["refuse", terms.max_requests, terms.max_tokens, terms.learns, granted, seconds])

    async def observe(self, slot: int, hint: RateHint) -> None:
        """Take in what the endpoint said, with the next call."""
        left_requests, left_tokens = hint.remaining_requests, hint.remaining_tokens
        await self._put(
            [
                "observe",
                slot,
                hint.limit_requests or 0,
                hint.limit_tokens or 0,
                -1 if left_requests is None else max(0, left_requests),
                -1 if left_tokens is None else max(0, left_tokens),
            ]
        )

    async def halt(self, kind: int) -> None:
        """Stop everyone."""
        await self._call(["halt", kind])

    async def trust(self, scope: int, grant: Grant) -> None:
        """Note an answer, with the next call."""
        await self._put(["trust", scope, grant.made])

    async def is_trusted(self, scope: int) -> bool:
        """Ask whether a request like these was answered a moment ago."""
        _, answer = await self._call(["is_trusted", scope])
        return answer == [1]

    async def aclose(self) -> None:
        """Write what was put off, if Redis can be reached, and close the connections."""
        try:
            if self._put_off:
                await self._call([])
        except LLMRetryableError:
            pass  # what was not given back expires with its window
        finally:
            if self._sender is not None:
                await asyncio.wait([self._sender])
            await self._redis.aclose()

    async def _put(self, step: list[Any]) -> None:
        """Put a step off; with many of them, or old ones, wait for them to be taken."""
        now = time.monotonic()
        if not self._put_off:
            self._put_off_since = now
        self._put_off.append(step)
        if len(self._put_off) >= _MOST_PUT_OFF or now - self._put_off_since > _LONGEST_PUT_OFF:
            await self._call([])

    async def _call(self, step: list[Any]) -> tuple[float, list[Any]]:
        """Take a step with the next call; an empty one only makes sure that there is a call."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[tuple[float, list[Any]]] = loop.create_future()
        self._asked.append((step, answer))
        if self._sender is None or self._sender.done():
            self._sender = loop.create_task(self._send_all())
        return await answer

    async def _send_all(self) -> None:
        """Send everything that has gathered, one call after the other, each with all there is."""
        while self._asked:
            asked, self._asked = self._asked, []
            put_off, self._put_off = self._put_off, []
            try:
                now, answers = await self._send([*put_off, *(step for step, _ in asked if step)])
            except Exception as error:  # noqa: BLE001 -- goes to those who asked
                for _, answer in asked:
                    if not answer.done():
                        answer.set_exception(error)
                continue
            theirs = iter(answers[len(answers) - sum(bool(step) for step, _ in asked) :])
            for step, answer in asked:
                result = next(theirs) if step else []
                if not answer.done():
                    answer.set_result((now, result))
                elif step and step[0] == "take":
                    self._put_off += [_undo(each, now) for each in result if each[0] == b"grant"]

    async def _send(self, steps: list[list[Any]]) -> tuple[float, list[Any]]:
        """Make one call, waiting a little for a Redis that is away."""
        deadline = time.monotonic() + self._patience
        while True:
            call = {
                "window": self._window,
                "now": self._now() if self._now else False,
                "seen": self._seen,
                "ops": steps,
            }
            try:
                now, interrupted, *answers = await self._run(self._key, [json.dumps(call)])
            except self._redis.refused as error:
                raise LLMStateError(
                    f"The shared limiter at {self._redis.place} refuses our user or password: mend limiter_url"
                ) from error
            except self._redis.unreachable as error:
                if time.monotonic() >= deadline:
                    raise LLMRetryableError(
                        f"The shared limiter at {self._redis.place} cannot be asked ({type(error).__name__}), and without it "
                        "nobody knows how much may be sent. Bring Redis back and run again: every answer so far is kept.",
                        retry_after=60.0,
                    ) from error
                # Perhaps it was the answer that was lost, and nothing may be given back twice.
                steps = [step for step in steps if not _gives(step)]
                await asyncio.sleep(_RETRY)
            else:
                self._seen, self._heard = float(now), time.monotonic()
                self._interrupted = float(interrupted)
                return self._seen, answers


def _answer(answer: list[bytes], now: float) -> Answer:
    kind, *numbers = answer
    first = float(numbers[0])
    if kind == b"grant":
        return Grant(at=first, slot=int(numbers[1]), tokens=float(numbers[2]), made=now)
    if kind == b"later":
        return Later(at=first, now=now, paused=numbers[1] == b"1")
    return TooLarge(first) if kind == b"too_large" else Halted(int(first), float(numbers[1]))


def _gives(step: list[Any]) -> bool:
    """Tell whether a step gives capacity back."""
    return bool(step[0] == "give_back" or (step[0] == "settle" and step[3] < 0))


def _undo(grant: list[bytes], now: float) -> list[Any]:
    """Return the step that gives back what nobody waits for any more."""
    return ["give_back", int(grant[2]), float(grant[3]), now]
