"""Leases: at no time do two processes work on the same rows of a destination, so that nobody pays twice.

Each holder writes a file of its own, then looks for those of others: of two that write at the same time at least one
sees the other, whatever the storage, as long as it lists what was written before. That asks less of it than a file that
only one can create, which fsspec offers for few stores. Of two that see each other before either holds its lease, the
one whose token is smaller goes first.

A thread renews the lease. Who has not renewed it in time, because its process was stopped or the storage away, has lost
it by its own clocks before anybody else may take it by theirs: by the monotonic one, which nobody sets, and by the
calendar, since the other does not count the time for which a machine sleeps.
"""

from __future__ import annotations

import datetime as dt
import math
import threading
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Self
from uuid import uuid4

from airflow_llm_provider.dataset.files.layout import LEASES
from airflow_llm_provider.dataset.files.urls import public_uri
from airflow_llm_provider.dataset.leases.lease_record import Owner, Record, Scope, Standing, Work
from airflow_llm_provider.dataset.leases.lease_terms import NEVER, Deadline, LeaseTerms
from airflow_llm_provider.dataset.leases.process import ProcessId
from airflow_llm_provider.errors import LLMBusyError, LLMError, LLMRetryableError, LLMStateError

if TYPE_CHECKING:
    from types import TracebackType

    from airflow_llm_provider.dataset.files.layout import Layout

#: Seconds between looks at others who claim the same and have not found out yet who goes first.
_LOOK_AGAIN = 0.05
#: Seconds that the end waits for a renewal that is just being written.
_PATIENCE = 10.0
_TOKEN_LENGTH = 16
_SPLITS = frozenset({Work.SPLIT, Work.START_OVER})


class Lease:
    """The right to work on a part of a destination; a context manager.

    :param owner: who works.
    :param plan: plan that is worked on.
    :param shard: shard of the plan that is worked on.
    :param what: the part, as messages name it before the destination, such as ``shard 3 of``.
    :raises LLMBusyError: on entry, when somebody else works on it.
    :raises LLMStateError: on entry, when the storage cannot be read or written.
    """

    def __init__(
        self,
        layout: Layout,
        work: Work,
        owner: Owner,
        *,
        what: str,
        plan: str = "",
        shard: str = "",
        terms: LeaseTerms | None = None,
    ) -> None:
        self._storage = layout.storage
        self._destination = public_uri(layout.destination)
        self._what = what
        self._terms = terms or LeaseTerms()
        self._scope = Scope(work=work, run=owner.digest, plan=plan, shard=shard)
        self._token = uuid4().hex[:_TOKEN_LENGTH]
        self._name = self._scope.name(self._token)
        self._record = Record(
            owner=owner,
            process=ProcessId.own(),
            standing=Standing.CLAIMED,
            since=self._terms.clock.time(),
            expires=math.inf,
        )
        self._valid_until = Deadline(monotonic=-math.inf, time=-math.inf)
        self._problem: LLMError | None = None
        self._ended = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="llm-lease", daemon=True)
        #: Whether the file stays at the end, for as long as a lease lasts: the same run goes on soon.
        self.leave = False

    @property
    def problem(self) -> LLMError | None:
        """Why nothing may be sent or written any more; ``None``: the lease is held."""
        if self._problem is None and self._valid_until.has_passed(self._terms.clock):
            self._problem = self._lost(f"it was not renewed for {self._terms.duration:.0f} s")
        return self._problem

    @property
    def held(self) -> bool:
        """Whether the lease is held."""
        return self.problem is None

    def check(self) -> None:
        """Make sure that the lease is still held.

        :raises LLMRetryableError: when it is not.
        :raises LLMStateError: when it could not be renewed.
        """
        if self.problem is not None:
            raise self.problem

    def look(self) -> None:
        """Make sure, without writing anything, that nobody is in the way at the moment.

        :raises LLMBusyError: when somebody is.
        """
        self._valid_until = NEVER
        self._must_wait()

    def __enter__(self) -> Self:
        self._valid_until = NEVER
        self._write(Standing.CLAIMED)
        try:
            while self._must_wait():
                self._terms.sleep(_LOOK_AGAIN)
            self._write(Standing.HELD)
            self.check()
        except BaseException:
            self._withdraw()
            raise
        self._keeper.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._keeper.join(_PATIENCE)
        if self.leave and error is None and self.problem is None:
            with suppress(LLMStateError):
                self._write(Standing.LEFT)
            return
        self._withdraw()

    def renew(self) -> None:
        """Make the lease last again for its whole duration, if it is still held.

        :raises LLMStateError: when the storage cannot be read or written; the lease holds until it runs out.
        """
        if self.problem is not None:
            return
        if self._storage.read_bytes(self._name) is None:
            self._problem = self._lost("another process has taken it over")
            return
        self._write(Standing.HELD)
        if not self.held:
            # It ran out before the file was written: somebody may have found it so, and is at work.
            self._withdraw()

    def _keep(self) -> None:
        while not self._ended.wait(self._terms.renewal):
            with suppress(LLMStateError):
                self.renew()
            if self.problem is not None:
                return

    def _write(self, standing: Standing) -> None:
        """Write the file; what it grants counts from before it is written."""
        terms = self._terms
        began = terms.clock.monotonic()
        self._record = replace(self._record, standing=standing, expires=terms.clock.time() + terms.duration)
        # Nobody waits for the disk: a power cut ends the holder as well, and a lease that it tore counts as held.
        self._storage.write_bytes(self._name, self._record.to_bytes(), lasting=False)
        if not self._valid_until.has_passed(terms.clock):
            self._valid_until = Deadline(monotonic=began + terms.duration, time=self._record.expires)

    def _withdraw(self) -> None:
        # A file that stays behind runs out by itself, and must not hide how the work went.
        with suppress(LLMStateError):
            self._storage.delete(self._name)

    def _must_wait(self) -> bool:
        """Look at the others; tell whether one of them has not found out yet that this one goes first.

        :raises LLMBusyError: when another goes first.
        """
        waiting = False
        for name in self._storage.files(LEASES):
            found = Scope.of_name(name)
            if found is None or found[1] == self._token:
                continue
            scope, token = found
            own_split = scope.run == self._scope.run and scope.work in _SPLITS
            if not (own_split or self._scope.excludes(scope)):
                continue
            other = self._live(name)
            if other is None or self._takes_on(name, scope, other) or not self._scope.excludes(scope):
                continue
            if other.standing is not Standing.CLAIMED or token < self._token:
                raise self._busy(other)
            waiting = True
        self.check()
        return waiting

    def _takes_on(self, name: str, scope: Scope, other: Record) -> bool:
        """Tell whether a lease that a split has left is in nobody's way: it keeps only the splits of other runs away."""
        if other.standing is not Standing.LEFT:
            return False
        if scope.run == self._scope.run:
            # From here on this lease stands for the run.
            self._storage.delete(name)
            return True
        return self._scope.work not in _SPLITS

    def _read(self, name: str) -> Record | None:
        """Read a lease; ``None`` when it is gone."""
        data = self._storage.read_bytes(name)
        if data is None:
            return None
        record = Record.from_bytes(data)
        if record is not None:
            return record
        # Of another version, or damaged: somebody may be at work.
        written = self._storage.modified(name)
        return (
            None
            if math.isinf(written)
            else Record(
                owner=Owner(run="a run that cannot be told"),
                process=None,
                standing=Standing.HELD,
                since=written,
                expires=written + self._terms.duration,
            )
        )

    def _live(self, name: str) -> Record | None:
        """Return a lease that somebody holds; one that nobody holds any more is removed."""
        record = self._read(name)
        if record is None:
            return None
        if not record.is_abandoned(self._terms.clock.time() - self._terms.skew):
            return record
        # Its holder notices, should it wake up.
        self._storage.delete(name)
        return None

    def _busy(self, other: Record) -> LLMBusyError:
        now = self._terms.clock.time()
        free = other.expires + self._terms.skew
        return LLMBusyError(
            f"{self._what} {self._destination} is in use by {other} since {_clock_time(other.since)}: only one at a "
            "time may work on it, or both would pay for the same rows. Wait until the other is over, or end it, and run "
            f"this again. If its machine is gone, nothing holds it from {_clock_time(free)} on",
            retry_after=max(1.0, free - now),
        )

    def _lost(self, why: str) -> LLMRetryableError:
        return LLMRetryableError(
            f"the lease on {self._what} {self._destination} is lost: {why}, as when a process is stopped, a machine "
            "sleeps or the storage is away. Nothing more is sent, since another process may be at work; every answer so far "
            "is kept, and the next try asks only the rest"
        )


def _clock_time(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds, tz=dt.UTC).isoformat(timespec="seconds")
