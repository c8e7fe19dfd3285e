"""What happens during a run, as facts. The engine never logs; whoever wants to know observes.

No event holds row text, answers or secrets.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, Self

from airflow_llm_provider.engine.value import value

if TYPE_CHECKING:
    from airflow_llm_provider.engine.call import FailureKind, Outcome, RateHint
    from airflow_llm_provider.engine.circuit_state import CircuitState
    from airflow_llm_provider.engine.status import RowStatus
    from airflow_llm_provider.engine.usage import Usage
    from airflow_llm_provider.engine.verdict import Verdict


class WaitReason(StrEnum):
    """Why a row waits."""

    #: The limiter's capacity is used up, or a pause holds back everyone.
    LIMIT = "limit"
    #: The previous attempt failed.
    BACKOFF = "backoff"
    #: A gate, such as an open breaker, lets nothing through for now.
    GATE = "gate"


@value
class AttemptStarted:
    """A request goes out.

    :param index: the row's index.
    :param attempt: number of the attempt at this row, from 1.
    """

    index: int
    attempt: int


@value
class AttemptFinished:
    """A request is over.

    :param kind: how it failed; ``None``: a completion came back, or we gave up on the request.
    :param code: the failure's code; ``None`` with a completion.
    :param message: what happened, for a person; no row text.
    :param latency: seconds from sending to the answer.
    :param usage: tokens billed; ``None``: not reported.
    :param cost_usd: US dollars; ``None``: unknown.
    :param rate: what the endpoint said about its limits.
    """

    index: int
    attempt: int
    verdict: Verdict
    kind: FailureKind | None = None
    code: str | None = None
    status_code: int | None = None
    latency: float = 0.0
    usage: Usage | None = None
    cost_usd: float | None = None
    rate: RateHint | None = None
    message: str | None = None


@value
class Waiting:
    """A row waits ``seconds`` before its next request may go out."""

    index: int
    reason: WaitReason
    seconds: float


@value
class Paused:
    """The endpoint refused a request for its rate: everyone on the account is held back for ``seconds``."""

    seconds: float
    account: str | None = None


@value
class BreakerChanged:
    """A breaker opened, because the endpoint does not answer, or closed again.

    :param model: model of a fallback; ``None``: the one that was asked for.
    :param reason: the last failure before it opened, for a person; no row text.
    """

    state: CircuitState
    account: str | None = None
    model: str | None = None
    reason: str | None = None


@value
class AccountLost:
    """Nothing is sent on an account any more; others go on.

    :param reason: for a person; no row text.
    """

    account: str | None
    reason: str


@value
class BudgetUsed:
    """The run has used up a share of its budget that is worth a warning.

    :param share: from 0 to 1.
    """

    share: float


@value
class BudgetUntold:
    """A try is over, but the account book of the run's budget has not heard of all that it spent: that stays reserved there.

    :param tokens: of which the book has not heard.
    :param cost_usd: the same in US dollars; 0 where money is not capped.
    :param reason: why the book could not be told.
    """

    tokens: int
    cost_usd: float
    reason: str


@value
class RowDone:
    """A row ended, and its outcome has been handed over."""

    index: int
    status: RowStatus
    code: str | None
    attempts: int
    usage: Usage
    cost_usd: float | None

    @classmethod
    def of(cls, outcome: Outcome) -> Self:
        """Return the event of an outcome, without its words."""
        return cls(
            index=outcome.index,
            status=outcome.status,
            code=outcome.code,
            attempts=outcome.attempts,
            usage=outcome.usage,
            cost_usd=outcome.cost_usd,
        )


@value
class BugFound:
    """Injected code raised what it must not raise. The row it happened to is contained.

    :param where: ``client``, ``judge``, ``price`` or ``observer``.
    :param error: the exception, with its traceback. Its text may quote an answer: log its type and place only.
    """

    where: str
    error: BaseException


@value
class Stopping:
    """No further request goes out; those in flight have ``grace`` seconds to come back."""

    reason: str
    grace: float


Event = (
    AttemptStarted
    | AttemptFinished
    | Waiting
    | Paused
    | BreakerChanged
    | AccountLost
    | BudgetUsed
    | BudgetUntold
    | RowDone
    | BugFound
    | Stopping
)


class Observer(Protocol):
    """Hears of every event, on the loop's thread: be quick, never block."""

    def on_event(self, event: Event) -> None:
        """Take note of ``event``."""
        ...


class Observers:
    """Tells two observers of every event; what the second one raises is a bug that the first one hears of."""

    def __init__(self, first: Observer, second: Observer) -> None:
        self._first = first
        self._second = second

    def on_event(self, event: Event) -> None:
        """Tell both."""
        self._first.on_event(event)
        try:
            self._second.on_event(event)
        except Exception as error:  # noqa: BLE001 -- watching must not cost an answer
            self._first.on_event(BugFound(where="observer", error=error))
