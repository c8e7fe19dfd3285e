"""Two who take the same lease at the same moment, in every order of their steps on the storage."""

from __future__ import annotations

import dataclasses
import threading

from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llm_provider.dataset.leases.lease import Lease
from airflow_llm_provider.dataset.leases.lease_record import Owner, Work
from airflow_llm_provider.dataset.leases.lease_terms import LeaseTerms
from airflow_llm_provider.errors import LLMBusyError


class Turns:
    """Storage whose steps are taken by several threads in an order that is given."""

    def __init__(self, order):
        self.files_by_name = {}
        self.order = list(order)
        self.changed = threading.Condition()
        self.running = set()
        self.local = threading.local()

    def start(self, who, work):
        self.running.add(who)

        def run():
            self.local.who = who
            try:
                work()
            finally:
                with self.changed:
                    self.running.discard(who)
                    self.changed.notify_all()

        return threading.Thread(target=run)

    def step(self):
        who = self.local.who
        with self.changed:
            assert self.changed.wait_for(lambda: self._next() in {who, None}, timeout=30)
            if self.order:
                self.order.pop(0)
            self.changed.notify_all()

    def _next(self):
        while self.order and self.order[0] not in self.running:
            self.order.pop(0)
        return self.order[0] if self.order else None

    def files(self, _):
        self.step()
        with self.changed:
            return sorted(self.files_by_name)

    def read_bytes(self, name):
        self.step()
        with self.changed:
            return self.files_by_name.get(name)

    def write_bytes(self, name, data, *, lasting):
        self.step()
        with self.changed:
            self.files_by_name[name] = data

    def delete(self, name):
        self.step()
        with self.changed:
            self.files_by_name.pop(name, None)


@dataclasses.dataclass
class Place:
    storage: Turns
    destination: str = "memory://out"


class TestTwoAtTheSameMoment:
    @settings(max_examples=150)
    @given(order=st.lists(st.sampled_from("AB"), min_size=0, max_size=24))
    def test_never_both_hold_it_and_never_neither(self, order):
        storage = Turns(order)
        holding, seen, refused = set(), [], []

        def take(who):
            lease = Lease(
                Place(storage),
                Work.COMPLETE,
                Owner(run=who),
                what="x",
                plan="p",
                shard="s",
                terms=LeaseTerms(sleep=lambda _: None),
            )
            try:
                with lease:
                    holding.add(who)
                    storage.step()
                    seen.append(frozenset(holding))
                    holding.discard(who)
            except LLMBusyError:
                refused.append(who)

        threads = [storage.start(who, lambda who=who: take(who)) for who in "AB"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(seen) + len(refused) == 2
        assert seen
        assert frozenset("AB") not in seen
        assert storage.files_by_name == {}
