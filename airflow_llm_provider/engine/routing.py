"""Which way a request takes, when there are several. Pure: takes the time, never waits.

Weighted round robin over the routes that are ready: not lost, not cooling, and with nobody waiting for capacity. A
fallback route is used while every other one's breaker is open, and when asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_llm_provider.errors import LLMRetryableError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from airflow_llm_provider.engine.lane import Lane
    from airflow_llm_provider.errors import LLMError


class Routing:
    """Chooses lanes.

    :param lanes: at least one that is no fallback.
    :param prefer_fallback: whether to use the fallback routes now, if there are any.
    """

    def __init__(self, lanes: Sequence[Lane], *, prefer_fallback: Callable[[], bool] | None = None) -> None:
        self._lanes = tuple(lanes)
        #: The lanes that are no fallback.
        self.first = [lane for lane in lanes if not lane.route.fallback]
        self._second = [lane for lane in lanes if lane.route.fallback]
        self._prefer_fallback = prefer_fallback
        #: What to raise once no lane is left.
        self.final: LLMError = LLMRetryableError("No account is left to send on")
        #: The only lane there is; ``None``: there are several.
        self.only = self._lanes[0] if len(self._lanes) == 1 else None

    def pick(self, now: float, excluded: Collection[Lane] = ()) -> Lane | None:
        """Return the lane for the next request: a ready one, else the one that is ready first.

        :param excluded: lanes that cannot take this request.
        :returns: ``None`` when there is no lane left.
        """
        if self.only is not None:
            return None if self.only.lost is not None or self.only in excluded else self.only
        candidates = self._candidates(excluded)
        ready = [lane for lane in candidates if lane.cooling_until <= now]
        if not ready:
            return min(candidates, key=lambda lane: lane.cooling_until, default=None)
        # A broken lane is only for its probe; the others, if there are any, go where answers come from.
        tier = [lane for lane in ready if not lane.route.fallback] or ready
        idle = [lane for lane in tier if not lane.waiting]
        if not idle:
            return min(tier, key=lambda lane: lane.waiting / lane.route.weight)
        return _in_turn(idle)

    def has_other(self, lane: Lane, now: float, excluded: Collection[Lane] = ()) -> bool:
        """Tell whether a request that would have to wait on ``lane`` could go out elsewhere."""
        if self.only is not None:
            return False
        return any(
            other is not lane and other.cooling_until <= now and not other.waiting
            for other in self._candidates(excluded)
        )

    def avoids(self, lane: Lane, excluded: Collection[Lane] = ()) -> bool:
        """Tell whether a fallback is to be used instead of ``lane``."""
        if lane.route.fallback or not self._wants_fallback():
            return False
        return any(other.lost is None and other not in excluded for other in self._second)

    def lose(self, lane: Lane, error: LLMError) -> LLMError | None:
        """Send nothing on ``lane`` any more; return what to raise when no other is left.

        A fallback stands in for an endpoint that does not answer, not for an account that is refused.
        """
        if lane.lost is None:
            lane.lost = error
        losses = [other.lost for other in self.first if other.lost is not None]
        if len(losses) < len(self.first):
            return None
        passing = next((loss for loss in losses if isinstance(loss, LLMRetryableError)), None)
        if passing is not None and any(map(_alive, self._second)):
            return None
        self.final = passing or (error if error in losses else losses[-1])
        return self.final

    def _candidates(self, excluded: Collection[Lane]) -> list[Lane]:
        second = [lane for lane in self._second if lane.lost is None and lane not in excluded]
        if second and self._wants_fallback():
            return second
        first = [lane for lane in self.first if lane.lost is None and lane not in excluded]
        if second and all(lane.broken for lane in first) and not _too_small(self.first, excluded):
            return first + second
        return first

    def _wants_fallback(self) -> bool:
        return bool(self._second) and self._prefer_fallback is not None and self._prefer_fallback()


def _alive(lane: Lane) -> bool:
    return lane.lost is None


def _too_small(lanes: Sequence[Lane], excluded: Collection[Lane]) -> bool:
    """Tell whether there are lanes in use of which none can take the request."""
    alive = [lane for lane in lanes if lane.lost is None]
    return bool(alive) and all(lane in excluded for lane in alive)


def _in_turn(lanes: Sequence[Lane]) -> Lane:
    """Take turns by weight, evenly spread: each gains its weight, the one chosen pays for all."""
    total = 0
    for lane in lanes:
        lane.credit += lane.route.weight
        total += lane.route.weight
    chosen = max(lanes, key=lambda lane: lane.credit)
    chosen.credit -= total
    return chosen
