"""The states of a circuit breaker, as Polly names them."""

from __future__ import annotations

from enum import StrEnum


class CircuitState(StrEnum):
    """State of a breaker."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"
