"""What one process may spend of a run's budget without asking: it is reserved at the account book in blocks.

Far from the limit a block is enough for many requests, so that few of them wait for the book; near it a block is one
request, and what is left of the last one is given back before anything is asked for. So the budget is used up to the end,
and nobody holds what others lack. What was spent is told in the background, soon after; so is what is not needed.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

from airflow_llm_provider.engine.budget.book import (
    Balance,
    BookAwayError,
    Holder,
    SessionLostError,
    Statement,
)
from airflow_llm_provider.engine.budget.spent import Spent, at_least, exceeds
from airflow_llm_provider.errors import LLMError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_llm_provider.engine.budget.book import AccountBook
    from airflow_llm_provider.engine.clock import Clock

#: Most that a block may be, as a share of the whole budget and of what is left of it. The second makes blocks shrink
#: towards the end, and leaves something to the other processes.
_SHARE, _SHARE_OF_REST = 0.01, 1 / 16
#: Seconds after which the book hears what was spent: when the process is killed, the rest counts with its holder's next try.
_TELL_AFTER = 0.1
#: Seconds between attempts at a book that is away.
BOOK_RETRY = 1.0


class Allowance:
    """A holder's part of a run's budget. Open it before use, and close it in the end.

    :param limit: what the run may spend.
    """

    def __init__(self, book: AccountBook, *, limit: Spent, holder: Holder, clock: Clock) -> None:
        self._book = book
        self._limit = limit
        self._holder = holder
        self._clock = clock
        self._heard = Balance()
        self._held = Spent()
        self._in_flight = Spent()
        self._spent = Spent()
        self._told = Spent()
        self._away = False
        self._round: asyncio.Task[Spent | None] | None = None
        self._teller: asyncio.Task[None] | None = None

    @property
    def balance(self) -> Balance:
        """The whole run's sums: those last heard, and what happened here since."""
        return Balance(
            spent=self.spent,
            reserved=self._heard.reserved - self._held + self._in_flight,
        )

    @property
    def spent(self) -> Spent:
        """What the whole run has spent, as :attr:`balance` says."""
        return self._heard.spent + self.untold

    @property
    def untold(self) -> Spent:
        """What was spent here, and the book has not heard of."""
        return self._spent - self._told

    async def open(self, paid: Mapping[str, Spent]) -> Balance:
        """Begin: whatever a former try of the holder had reserved comes free. Return the run's sums.

        :param paid: what the answers of former tries have cost, by session.
        """
        self._heard = await self._book.open(self._holder, paid)
        return self._heard

    async def raise_to(self, known: Spent) -> None:
        """Make good a book that was lost."""
        self._heard = await self._book.raise_to(known)

    async def reserve(self, cost: Spent) -> bool:
        """Reserve what a request can cost; return whether that fits into the budget.

        :raises BookAwayError: when the book cannot be asked.
        """
        while not self._take(cost):
            refused = await self._ask(cost)
            self._wake_teller()
            if refused is not None and cost.tokens >= refused.tokens and cost.cost_usd >= refused.cost_usd:
                return False
        return True

    def settle(self, reserved: Spent, spent: Spent) -> None:
        """Replace what was reserved for a request by what it has cost."""
        self._in_flight -= reserved
        self._spent += spent
        self._wake_teller()

    async def aclose(self, known: Callable[[], Spent], *, patience: float = 0.0) -> None:
        """Tell everything, and give back what is left.

        :param known: what the run's stored answers have cost; asked for when the book does not know the session any more.
        :param patience: seconds for which a book that is away is waited for.
        :raises BookAwayError: when it stays away: the holder's next try frees what stays reserved.
        """
        if self._teller is not None:
            self._teller.cancel()
        if self._round is not None:
            await asyncio.wait([self._round])
        until = self._clock.monotonic() + patience
        last = Statement(spent=self._spent, last=True)
        while True:
            try:
                await self._end(last, known)
            except BookAwayError:
                if self._clock.monotonic() >= until:
                    raise
                await self._clock.sleep(BOOK_RETRY)
            else:
                return

    async def _end(self, last: Statement, known: Callable[[], Spent]) -> None:
        try:
            await self._book.state(self._holder, last, limit=self._limit)
        except SessionLostError:
            # When the book was lost, whoever opened it anew did not know the answers that have come since. When only the
            # answer to an earlier attempt was lost, it knows all of them.
            await self.raise_to(known())
        self._told = self._spent

    @property
    def _left(self) -> Spent:
        """What is reserved for nothing in particular."""
        return self._held - self.untold - self._in_flight

    def _take(self, cost: Spent) -> bool:
        # Nothing goes out while the book does not hear of it: that is forgotten when this process dies, and a book that
        # does not know the session has promised the block to others.
        if self._away or exceeds(self._in_flight + self.untold + cost, self._held):
            return False
        self._in_flight += cost
        return True

    async def _ask(self, cost: Spent | None) -> Spent | None:
        """Ask the book for more, or join those who do already; return what it refused.

        In a task of its own, since a connection does not outlive the cancellation of who waits for its answer.
        """
        if self._round is None or self._round.done():
            self._round = asyncio.ensure_future(self._draw(cost))
            self._round.add_done_callback(_heed)
        return await asyncio.shield(self._round)

    async def _draw(self, cost: Spent | None) -> Spent | None:
        """Tell what was spent, and get at least ``cost``; return what was refused, which is that or nothing."""
        if cost is None:
            await self._state(Spent())
            return None
        times = self._block(cost)
        if times > 1 and await self._state(cost * times):
            return None
        self._give_back()
        return None if await self._state(cost) else cost

    def _give_back(self) -> None:
        """Keep only what requests in flight may take; the book hears of it with the next statement."""
        self._held = self._in_flight + self.untold

    async def _state(self, more: Spent) -> bool:
        # A request that cost more than was reserved for it takes from the others', which stay reserved nevertheless.
        spent, kept = self._spent, at_least(self._held - self.untold, self._in_flight)
        statement = Statement(spent=spent, kept=kept, wanted=kept + more)
        try:
            fits, self._heard = await self._book.state(self._holder, statement, limit=self._limit)
        except Exception:
            self._away = True
            raise
        # What was taken and settled meanwhile is in neither number, and still fits.
        self._away, self._told, self._held = False, spent, statement.wanted if fits else kept
        return fits

    def _block(self, cost: Spent) -> int:
        """Return how often a cost goes into a block."""
        rest = self._limit - self._heard.total
        pairs = (
            (self._limit.tokens, rest.tokens, cost.tokens),
            (self._limit.cost_usd, rest.cost_usd, cost.cost_usd),
        )
        times = [
            min(whole * _SHARE, left * _SHARE_OF_REST) / own
            for whole, left, own in pairs
            if own > 0 and not math.isinf(whole)
        ]
        return max(0, int(min(times, default=0)))

    def _wake_teller(self) -> None:
        if self._teller is None or self._teller.done():
            self._teller = asyncio.ensure_future(self._tell())

    async def _tell(self) -> None:
        """Let the book know what was spent, and give back what is more than a block, or what nobody takes."""
        while True:
            before = self._spent, self._in_flight
            await self._clock.sleep(_TELL_AFTER)
            if before == (self._spent, self._in_flight) or not self._block(self._left):
                self._give_back()
            try:
                await self._ask(None)
            except LLMError:
                return  # the next request meets it too
            if self.untold == Spent() and self._left.tokens <= 0:
                return


def _heed(task: asyncio.Task[Spent | None]) -> None:
    """Look at a task's exception, which nobody waits for any more when all who asked were cancelled."""
    if not task.cancelled():
        task.exception()
