"""A route in use: its runtime parts, and what became of it so far."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from airflow_llm_provider.engine.breaker import BreakerGate
from airflow_llm_provider.engine.circuit_state import CircuitState
from airflow_llm_provider.engine.cooldown import Cooldown
from airflow_llm_provider.engine.events import BreakerChanged
from airflow_llm_provider.engine.exchange import Exchanger
from airflow_llm_provider.engine.limiter import Unlimited

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from airflow_llm_provider.engine.call import Request
    from airflow_llm_provider.engine.clock import Clock
    from airflow_llm_provider.engine.config import EngineConfig
    from airflow_llm_provider.engine.events import Event, WaitReason
    from airflow_llm_provider.engine.gate import Counter
    from airflow_llm_provider.engine.limiter import Limiter
    from airflow_llm_provider.engine.route import Route
    from airflow_llm_provider.errors import LLMError


class Lane:
    """A route in use: what became of it so far.

    :param limiter: the route's, or one of this run.
    :param exchanger: sends on this route.
    """

    __slots__ = (
        "breaker",
        "cooling",
        "cooling_until",
        "credit",
        "exchanger",
        "gates",
        "limiter",
        "lost",
        "route",
        "waiting",
    )

    def __init__(self, route: Route, limiter: Limiter, exchanger: Exchanger) -> None:
        self.route = route
        self.limiter = limiter
        self.exchanger = exchanger
        self.gates = route.gates
        self.breaker = next((gate.breaker for gate in route.gates if isinstance(gate, BreakerGate)), None)
        #: Until when nothing is to be tried here, and why.
        self.cooling_until = -math.inf
        self.cooling: WaitReason | None = None
        #: Why nothing is sent here any more.
        self.lost: LLMError | None = None
        #: Requests that wait here for capacity.
        self.waiting = 0
        #: What it is ahead of the others by, when their turns are weighed.
        self.credit = 0

    @property
    def broken(self) -> bool:
        """Whether the endpoint does not answer here at the moment."""
        return self.breaker is not None and self.breaker.state is not CircuitState.CLOSED

    def cool(self, until: float, reason: WaitReason) -> None:
        """Let others have their turn until then."""
        self.cooling_until = until
        self.cooling = reason

    def as_sent(self, request: Request) -> Request:
        """Return the request as it goes out here."""
        model = self.route.model
        if model is None:
            return request
        return dataclasses.replace(request, body={**request.body, "model": model})


def open_lane(
    route: Route,
    gates: Sequence[Counter],
    *,
    config: EngineConfig,
    clock: Clock,
    rng: random.Random,
    emit: Callable[[Event], None] | None,
) -> Lane:
    """Put a route into use.

    :param gates: of every route of the run, and its budget.
    :param emit: takes events; ``None``: nobody listens.
    """
    limiter = route.limiter or Unlimited(clock=clock, rng=rng)
    exchanger = Exchanger(
        route.client,
        limiter=limiter,
        gates=(*route.gates, *gates),
        cooldown=Cooldown(config.retry, rng),
        clock=clock,
        timeout=config.timeout,
        emit=emit,
        account=route.name,
    )
    lane = Lane(route, limiter, exchanger)
    breaker = lane.breaker
    if breaker is not None and emit is not None:
        breaker.on_change = lambda state: emit(
            BreakerChanged(state=state, account=route.name, model=route.model, reason=breaker.last_failure)
        )
    return lane
