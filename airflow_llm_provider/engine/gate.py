"""What may hold back every request besides the limiter: a breaker, a budget. Consulted before each attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from airflow_llm_provider.engine.value import value

if TYPE_CHECKING:
    from airflow_llm_provider.engine.call import Request
    from airflow_llm_provider.engine.events import AttemptFinished
    from airflow_llm_provider.errors import LLMError


@value
class Passage:
    """A gate's answer.

    :param wait: seconds to wait before asking again; 0: pass.
    :param stop: ends the run with this error; rows that have not ended stay pending.
    """

    wait: float = 0.0
    stop: LLMError | None = None


#: The request may go out.
PASS = Passage()


class Counter(Protocol):
    """Counts what it let through.

    Every passage is followed by exactly one :meth:`settle`, or :meth:`withdraw` when the request did not go out
    after all.
    """

    def withdraw(self, request: Request, *, now: float) -> None:
        """Hear that an admitted request was not sent."""
        ...

    def settle(self, request: Request, attempt: AttemptFinished, *, now: float) -> None:
        """Hear how an admitted request ended."""
        ...


class Gate(Counter, Protocol):
    """Decides whether a request may go out now. Pure: takes the time, never sleeps, waits or logs."""

    def admit(self, request: Request, *, now: float) -> Passage:
        """Answer a request that could go out now."""
        ...
