"""Where the shared numbers live: the seam between the limiter and memory, a file, Redis."""

from __future__ import annotations

import threading
from array import array
from typing import TYPE_CHECKING, Protocol

from airflow_llm_provider.engine.clock import Clock, SystemClock
from airflow_llm_provider.engine.limits import bucket, hints
from airflow_llm_provider.engine.limits.state import LENGTH, initialise, resum
from airflow_llm_provider.errors import LLMStateError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_llm_provider.engine.call import RateHint
    from airflow_llm_provider.engine.limits.bucket import Answer, Grant, Terms
    from airflow_llm_provider.engine.limits.state import State


class Backend(Protocol):
    """Runs the bucket's steps on the shared state, each as one atomic step on the backend's own time.

    A backend that cannot do so raises; it never answers as if there were no limit.
    """

    async def take(
        self, terms: Terms, wanted: Sequence[tuple[float, float]], *, horizon: float, since: float
    ) -> list[Answer]:
        """Run :func:`~airflow_llm_provider.engine.limits.bucket.take` for several requests, up to one that must wait.

        :param wanted: tokens to reserve, and tokens taken for certain, of each request.
        """
        ...

    async def settle(self, slot: int, requests: float, tokens: float) -> None:
        """Run :func:`~airflow_llm_provider.engine.limits.bucket.settle`; may be put off until the next step."""
        ...

    async def give_back(self, grant: Grant) -> None:
        """Run :func:`~airflow_llm_provider.engine.limits.bucket.give_back`."""
        ...

    def now(self) -> float:
        """Return the backend's time, as well as it is known here."""
        ...

    async def overtaken(self, grant: Grant) -> bool:
        """Tell whether a pause or a halt began after the grant was made."""
        ...

    async def delay(self, grant: Grant, now: float) -> Grant:
        """Run :func:`~airflow_llm_provider.engine.limits.bucket.delay`; may be put off until the next step."""
        ...

    async def refuse(self, terms: Terms, *, granted_at: float | None, seconds: float) -> None:
        """Run :func:`~airflow_llm_provider.engine.limits.bucket.refuse`; granted at ``None``: now."""
        ...

    async def observe(self, slot: int, hint: RateHint) -> None:
        """Run :func:`~airflow_llm_provider.engine.limits.hints.observe`; may be put off until the next step."""
        ...

    async def halt(self, kind: int) -> None:
        """Run :func:`~airflow_llm_provider.engine.limits.bucket.halt`."""
        ...

    async def trust(self, scope: int, grant: Grant) -> None:
        """Run :func:`~airflow_llm_provider.engine.limits.bucket.trust`; may be put off until the next step."""
        ...

    async def is_trusted(self, scope: int) -> bool:
        """Run :func:`~airflow_llm_provider.engine.limits.bucket.is_trusted`."""
        ...

    async def aclose(self) -> None:
        """Write what was put off and close what is open."""
        ...


class Store(Protocol):
    """Holds one state on this machine."""

    def peek(self) -> State:
        """Return the state to look at, unlocked."""
        ...

    async def lock(self) -> State:
        """Return the state once nobody else writes to it."""
        ...

    def unlock(self, *, sound: bool) -> None:
        """Let others write.

        :param sound: whether the step was completed; if not, a signal broke into it and its sums need mending.
        """
        ...

    def close(self) -> None:
        """Close what is open."""
        ...


#: Corrections that are put off until the next step: no more than this many, no longer than these seconds.
_MOST_PUT_OFF = 16
_LONGEST_PUT_OFF = 0.02


class LocalBackend:
    """A backend on this machine's monotonic clock: the steps run here, on the store's numbers.

    Who settles mostly takes at once for the next row: both then cost one lock.
    """

    def __init__(self, store: Store, *, window: float = 60.0, clock: Clock | None = None) -> None:
        self._store = store
        self._window = window
        self._now = (clock or SystemClock()).monotonic
        self._put_off: list[tuple[int, float, float]] = []
        self._put_off_since = 0.0

    async def take(
        self, terms: Terms, wanted: Sequence[tuple[float, float]], *, horizon: float, since: float
    ) -> list[Answer]:
        """Take requests and their tokens."""
        answers: list[Answer] = []

        def step(state: State) -> None:
            now = self._now()
            for tokens, least in wanted:
                answer = bucket.take(
                    state, terms, tokens=tokens, least=least, horizon=horizon, since=since, now=now
                )
                answers.append(answer)
                if isinstance(answer, bucket.Later):
                    return

        await self._run(step)
        return answers

    async def settle(self, slot: int, requests: float, tokens: float) -> None:
        """Correct a grant, with the next step."""
        now = self._now()
        if not self._put_off:
            self._put_off_since = now
        self._put_off.append((slot, requests, tokens))
        if len(self._put_off) >= _MOST_PUT_OFF or now - self._put_off_since > _LONGEST_PUT_OFF:
            await self._run(_nothing)

    async def give_back(self, grant: Grant) -> None:
        """Undo a grant."""
        await self._run(lambda state: bucket.give_back(state, grant.slot, grant.tokens, grant.made))

    def now(self) -> float:
        """Return the time."""
        return self._now()

    async def overtaken(self, grant: Grant) -> bool:
        """Look, without a lock: a pause that begins at this very moment is one that the request just missed."""
        return bucket.is_overtaken(self._store.peek(), grant.made)

    async def delay(self, grant: Grant, now: float) -> Grant:
        """Write a grant down where its request really goes out."""
        delayed = grant

        def step(state: State) -> None:
            nonlocal delayed
            delayed = bucket.delay(state, grant, window=self._window, now=now)

        await self._run(step)
        return delayed

    async def refuse(self, terms: Terms, *, granted_at: float | None, seconds: float) -> None:
        """Hold back everyone, and learn."""

        def step(state: State) -> None:
            now = self._now()
            granted = now if granted_at is None else granted_at
            bucket.refuse(state, terms, granted_at=granted, seconds=seconds, now=now)

        await self._run(step)

    async def observe(self, slot: int, hint: RateHint) -> None:
        """Take in what the endpoint said."""
        await self._run(lambda state: hints.observe(state, slot, hint))

    async def halt(self, kind: int) -> None:
        """Stop everyone."""
        await self._run(lambda state: bucket.halt(state, kind, self._now()))

    async def trust(self, scope: int, grant: Grant) -> None:
        """Note an answer."""
        await self._run(lambda state: bucket.trust(state, scope, grant.made, self._now()))

    async def is_trusted(self, scope: int) -> bool:
        """Look, without a lock: at worst a first request goes out alone, or not."""
        return bucket.is_trusted(self._store.peek(), scope, self._now())

    async def _run(self, step: Callable[[State], None]) -> None:
        state, done = await self._store.lock(), False
        try:
            while self._put_off:
                bucket.settle(state, *self._put_off.pop())
            step(state)
            done = True
        finally:
            self._store.unlock(sound=done)

    async def aclose(self) -> None:
        """Write what was put off, and close the store."""
        try:
            if self._put_off:
                await self._run(_nothing)
        except LLMStateError:
            pass  # what was not given back expires with its window
        finally:
            self._store.close()


def _nothing(_: State) -> None:
    """Take no step but those that were put off."""


class MemoryStore:
    """A state in this process; threads of it may share the store."""

    def __init__(self, *, window: float = 60.0, now: float | None = None) -> None:
        self._state = array("d", bytes(8 * LENGTH))
        self._lock = threading.Lock()
        initialise(self._state, window=window, now=SystemClock().monotonic() if now is None else now)

    def peek(self) -> State:
        """Return the state, unlocked."""
        return self._state

    async def lock(self) -> State:
        """Return the state; another thread holds it for microseconds only."""
        self._lock.acquire()
        return self._state

    def unlock(self, *, sound: bool) -> None:
        """Let other threads write."""
        if not sound:
            resum(self._state)
        self._lock.release()

    def close(self) -> None:
        """Do nothing."""
