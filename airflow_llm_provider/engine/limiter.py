"""Capacity of an account: taken before a request goes out, corrected when its answer is in."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Protocol

from airflow_llm_provider.engine.clock import Clock, SystemClock
from airflow_llm_provider.engine.value import value

if TYPE_CHECKING:
    from airflow_llm_provider.engine.call import FailureKind, RateHint

#: After a pause, callers start spread over this share of it, so that they do not all come back at one instant.
_RAMP_SHARE = 0.5
#: The longest such spread, in seconds.
_MAX_RAMP = 2.0


@value
class Cost:
    """What requests take of an account's limits.

    :param requests: number of requests.
    :param tokens: tokens, prompt and answer together.
    :param output_cap: the part of ``tokens`` that is only the cap of the answer. A limiter that has learned how
        long answers usually are may take less than it.
    """

    requests: int = 1
    tokens: int = 0
    output_cap: int = 0


@value
class Reservation:
    """Capacity taken for one request that has not gone out yet.

    :param cost: what was asked for.
    :param wait: seconds after which the request may go out.
    :param token: whatever the limiter needs to find the reservation again.
    """

    cost: Cost
    wait: float = 0.0
    token: object = None


class CostExceedsLimitError(Exception):
    """One request is larger than the limit itself, so that no waiting would ever let it through.

    :param code: short stable code, such as ``request_exceeds_tpm``.
    :param message: what was asked, what the limit is, what to do; no row text.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class AccountHaltedError(Exception):
    """Somebody else who sends on this account met a failure that everyone would meet.

    :param kind: that failure, one of the terminal kinds.
    """

    def __init__(self, kind: FailureKind) -> None:
        super().__init__(f"Another task on this account was stopped: {kind.value}")
        self.kind = kind


class Limiter(Protocol):
    """Shares one account's limits between everyone who sends on it.

    Errors other than :class:`CostExceedsLimitError` and :class:`AccountHaltedError` end the run: a limiter that cannot
    be asked is never "no limit".
    """

    async def reserve(self, cost: Cost) -> Reservation:
        """Take ``cost`` in one atomic step and say how long to wait before sending.

        :raises CostExceedsLimitError: when the cost can never be granted; nothing was taken.
        :raises AccountHaltedError: when somebody halted the account after this limiter was made; nothing was taken.
        """
        ...

    async def recheck(self, reservation: Reservation) -> float:
        """Return how many more seconds to wait, because a pause began meanwhile; 0: send now.

        :raises AccountHaltedError: as :meth:`reserve`.
        """
        ...

    async def settle(self, reservation: Reservation, used: Cost) -> None:
        """Replace the reserved cost of a request that went out by what it really took."""
        ...

    async def cancel(self, reservation: Reservation) -> None:
        """Give back what was taken for a request that never went out."""
        ...

    async def pause(self, seconds: float, *, reservation: Reservation | None = None) -> None:
        """Hold back everyone for ``seconds``: the endpoint refused a request for its rate.

        To be told of every such refusal, even of one that a pause under way covers (then ``seconds`` may be 0): how
        many were refused tells how many it takes.

        :param reservation: the refused request's.
        """
        ...

    async def observe(self, rate: RateHint, *, reservation: Reservation | None = None) -> None:
        """Hear what the endpoint said about its limits.

        :param reservation: of the request that it was said about, not settled yet or just settled.
        """
        ...

    async def halt(self, kind: FailureKind, *, own: bool = False) -> None:
        """Stop everyone who sends on this account now: every request would meet the same failure.

        :param own: only requests made like ours would meet it, such as those with the same parameter.
        """
        ...

    async def is_trusted(self) -> bool:
        """Tell whether a request like ours was answered a moment ago, whoever sent it, and nobody halted since.

        Then nothing would be learned from sending the first one alone.
        """
        ...

    async def aclose(self) -> None:
        """Hand over what is not yet written and close connections; reservations stay taken."""
        ...


class Unlimited:
    """No limit of its own; a pause still holds back every caller within this process.

    :param ramp: whether callers start spread over some time after a pause.
    """

    def __init__(
        self, *, clock: Clock | None = None, rng: random.Random | None = None, ramp: bool = True
    ) -> None:
        self._clock = clock or SystemClock()
        self._rng = rng or random.Random()  # noqa: S311 -- jitter, not a secret
        self._ramp = ramp
        self._paused_until = 0.0
        self._spread = 0.0

    async def reserve(self, cost: Cost) -> Reservation:
        """Grant at once, or after the pause."""
        return Reservation(cost=cost, wait=self._rest_of_pause())

    async def recheck(self, reservation: Reservation) -> float:  # noqa: ARG002 -- the protocol's
        """Return the rest of a pause that began meanwhile."""
        return self._rest_of_pause()

    async def settle(self, reservation: Reservation, used: Cost) -> None:
        """Do nothing: there is no account to correct."""

    async def cancel(self, reservation: Reservation) -> None:
        """Do nothing: nothing was taken."""

    async def pause(self, seconds: float, *, reservation: Reservation | None = None) -> None:  # noqa: ARG002
        """Hold back every caller until ``seconds`` from now; never shortens a pause."""
        until = self._clock.monotonic() + seconds
        if until > self._paused_until:
            self._paused_until = until
            self._spread = min(_MAX_RAMP, seconds * _RAMP_SHARE) if self._ramp else 0.0

    async def observe(self, rate: RateHint, *, reservation: Reservation | None = None) -> None:
        """Do nothing: there is no limit to learn."""

    async def halt(self, kind: FailureKind, *, own: bool = False) -> None:
        """Do nothing: there is nobody else."""

    async def is_trusted(self) -> bool:
        """Know of nobody's answers."""
        return False

    async def aclose(self) -> None:
        """Do nothing: there is nothing to close."""

    def _rest_of_pause(self) -> float:
        if self._paused_until <= 0.0:
            return 0.0
        rest = self._paused_until - self._clock.monotonic()
        if rest <= 0.0:
            return 0.0
        return rest + self._rng.random() * self._spread
