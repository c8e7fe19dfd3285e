"""Asks before every request whether the shard is still ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_llm_provider.engine.gate import PASS, Passage

if TYPE_CHECKING:
    from airflow_llm_provider.dataset.leases.lease import Lease
    from airflow_llm_provider.engine.call import Request
    from airflow_llm_provider.engine.events import AttemptFinished


class LeaseGate:
    """Ends the run when its lease is lost; implements :class:`~airflow_llm_provider.engine.gate.Gate`.

    A process that was stopped and wakes up asks here before it asks the model anything.
    """

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    def admit(self, request: Request, *, now: float) -> Passage:  # noqa: ARG002 -- the lease goes by the real time
        """Let the request pass while the lease is held."""
        problem = self._lease.problem
        return PASS if problem is None else Passage(stop=problem)

    def withdraw(self, request: Request, *, now: float) -> None:
        """Do nothing: nothing was counted."""

    def settle(self, request: Request, attempt: AttemptFinished, *, now: float) -> None:
        """Do nothing: nothing was counted."""
