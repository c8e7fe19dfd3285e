"""A21: of two who want to work on the same rows at the same time, one is refused."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llm_provider.dataset.files.layout import LEASES, Layout
from airflow_llm_provider.dataset.leases.lease import Lease
from airflow_llm_provider.dataset.leases.lease_record import Owner, Record, Scope, Standing, Work
from airflow_llm_provider.dataset.leases.lease_terms import LeaseTerms
from airflow_llm_provider.dataset.leases.process import ProcessId
from airflow_llm_provider.errors import LLMBusyError, LLMInputError, LLMRetryableError, LLMStateError
from airflow_llm_provider.testing.clock import ManualClock

NIGHTLY = Owner(run="run scheduled__1 of DAG nightly", task="task label.complete, map index 3, try 1")
PERSON = Owner(run="run manual__2 of DAG nightly")
FAR = dataclasses.replace(ProcessId.own(), host="worker-7", system="another")


class Desk:
    """A destination, a time of its own, and those who want to work."""

    def __init__(self, folder):
        self.layout = Layout(str(folder))
        self.storage = self.layout.storage
        self.clock = ManualClock()
        self.terms = LeaseTerms(clock=self.clock, sleep=self.clock.jump)

    def lease(self, owner=NIGHTLY, work=Work.COMPLETE, *, plan="p", shard="s"):
        return Lease(self.layout, work, owner, what="shard 0 of", plan=plan, shard=shard, terms=self.terms)

    def files(self):
        return self.storage.files(LEASES)

    def plant(self, owner=NIGHTLY, work=Work.COMPLETE, *, plan="p", shard="s", process=FAR, **changes):
        """Write a lease that another process holds."""
        now = self.clock.time()
        record = Record(owner=owner, process=process, standing=Standing.HELD, since=now, expires=now + 60)
        name = Scope(work=work, run=owner.digest, plan=plan, shard=shard).name("0" * 16)
        self.storage.write_bytes(name, dataclasses.replace(record, **changes).to_bytes())
        return name


class Nap(ManualClock):
    """The clock of a machine that slept, which the calendar counts and ``CLOCK_MONOTONIC`` does not."""

    seconds = 0.0

    def time(self):
        return super().time() + self.seconds


def fail(_):
    raise LLMStateError("the storage is away")


@pytest.fixture
def desk(tmp_path):
    return Desk(tmp_path)


class TestLease:
    def test_nobody_waits_for_the_disk(self, desk, monkeypatch):
        synced = []
        monkeypatch.setattr("os.fsync", synced.append)
        with desk.lease() as lease:
            lease.renew()
        assert synced == []

    def test_a_second_holder_is_refused_and_told_who_and_since_when(self, desk):
        with desk.lease(), pytest.raises(LLMBusyError) as caught, desk.lease(PERSON):
            pass
        own = ProcessId.own()
        assert str(caught.value).startswith(
            f"shard 0 of {desk.layout.destination} is in use by run scheduled__1 of DAG nightly (task label.complete, map "
            f"index 3, try 1, process {own.pid} on host {own.host}) since 2023-11-14T22:13:20+00:00: "
        )
        assert caught.value.retry_after == 70.0

    def test_comes_free_at_the_end_however_that_is(self, desk):
        with pytest.raises(KeyError), desk.lease():
            raise KeyError
        with desk.lease(PERSON):
            assert len(desk.files()) == 1
        assert desk.files() == []

    def test_who_is_refused_leaves_nothing(self, desk):
        with desk.lease():
            before = desk.files()
            with pytest.raises(LLMBusyError), desk.lease(PERSON):
                pass
            assert desk.files() == before

    def test_a_look_writes_nothing(self, desk):
        desk.lease().look()
        assert not Path(desk.layout.destination, "_llm").exists()
        desk.plant()
        with pytest.raises(LLMBusyError):
            desk.lease(PERSON).look()

    def test_terms_that_cannot_be_kept_are_refused(self):
        with pytest.raises(LLMInputError, match="renewal 60"):
            LeaseTerms(renewal=60)


class TestWhoExcludesWhom:
    @pytest.mark.parametrize(
        ("held", "wanted", "refused"),
        [
            ((Work.COMPLETE, "p", "s"), (Work.COMPLETE, "p", "s"), True),
            ((Work.COMPLETE, "p", "s"), (Work.COMPLETE, "p", "t"), False),
            ((Work.COMPLETE, "p", "s"), (Work.COMPLETE, "q", "t"), True),
            ((Work.COMPLETE, "p", "s"), (Work.SPLIT, "", ""), True),
            ((Work.COMPLETE, "p", "s"), (Work.MERGE, "p", ""), False),
            ((Work.SPLIT, "", ""), (Work.SPLIT, "", ""), True),
            ((Work.SPLIT, "", ""), (Work.COMPLETE, "p", "s"), True),
            ((Work.MERGE, "p", ""), (Work.MERGE, "q", ""), True),
            ((Work.MERGE, "p", ""), (Work.SPLIT, "", ""), True),
        ],
    )
    def test_of_two_runs(self, desk, held, wanted, refused):
        work, plan, shard = held
        desk.plant(work=work, plan=plan, shard=shard)
        work, plan, shard = wanted
        wanted = desk.lease(PERSON, work, plan=plan, shard=shard)
        if refused:
            with pytest.raises(LLMBusyError):
                wanted.look()
        else:
            wanted.look()

    @pytest.mark.parametrize("work", list(Work))
    def test_a_run_that_was_cleared_may_split_again_but_not_forget_answers_that_still_come_in(
        self, desk, work
    ):
        desk.plant(work=work)
        if work is not Work.START_OVER:
            with desk.lease(work=Work.SPLIT, plan="", shard=""):
                pass
        with pytest.raises(LLMBusyError), desk.lease(work=Work.START_OVER, plan="", shard=""):
            pass

    @given(
        scopes=st.lists(
            st.builds(
                Scope,
                work=st.sampled_from(list(Work)),
                run=st.sampled_from(["aa", "bb"]),
                plan=st.sampled_from(["", "11", "22"]),
                shard=st.sampled_from(["", "33", "44"]),
            ),
            min_size=2,
            max_size=2,
        )
    )
    def test_it_is_mutual_and_all_of_it_is_in_the_name(self, scopes):
        one, other = scopes
        assert one.excludes(other) is other.excludes(one)
        assert Scope.of_name(one.name("55")) == (one, "55")


class TestWhatSplitLeaves:
    def test_keeps_other_runs_from_splitting_until_it_runs_out(self, desk):
        with desk.lease(work=Work.SPLIT, plan="", shard="") as split:
            split.leave = True
        with pytest.raises(LLMBusyError, match="scheduled__1"):
            desk.lease(PERSON, Work.SPLIT, plan="", shard="").look()
        with desk.lease(PERSON, shard="t"):
            pass
        desk.clock.jump(71)
        desk.lease(PERSON, Work.SPLIT, plan="", shard="").look()
        assert desk.files() == []

    def test_is_taken_on_by_the_first_task_of_the_same_run(self, desk):
        with desk.lease(work=Work.SPLIT, plan="", shard="") as split:
            split.leave = True
        with desk.lease():
            assert len(desk.files()) == 1
        assert desk.files() == []

    def test_a_split_that_fails_leaves_nothing(self, desk):
        split = desk.lease(work=Work.SPLIT)
        split.leave = True
        with pytest.raises(KeyError), split:
            raise KeyError
        assert desk.files() == []


class TestTakeover:
    def test_I1_at_once_when_the_process_is_dead(self, desk):
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        own = ProcessId.own()
        alive = dataclasses.replace(own, pid=child.pid, started="")
        assert not alive.is_dead()
        child.kill()
        # Over, and not looked at by its parent yet: whether that is so soon depends on the kernel.
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        desk.plant(process=dataclasses.replace(own, pid=child.pid, started="1"))
        with desk.lease(PERSON):
            assert len(desk.files()) == 1
        child.communicate()
        desk.plant(process=alive)
        with desk.lease(PERSON):
            assert len(desk.files()) == 1

    def test_at_once_when_the_number_belongs_to_another_process_now(self, desk):
        desk.plant(process=dataclasses.replace(ProcessId.own(), started="1"))
        with desk.lease(PERSON):
            pass

    def test_of_another_machine_only_when_the_lease_ran_out_and_clocks_may_differ(self, desk):
        desk.plant()
        desk.clock.jump(69.9)
        with pytest.raises(LLMBusyError) as caught, desk.lease(PERSON):
            pass
        assert caught.value.retry_after == 1.0
        desk.clock.jump(0.2)
        with desk.lease(PERSON):
            pass

    @pytest.mark.parametrize("content", [b"", b"{", b'{"lease_version": 2}', b"[1]"])
    def test_of_what_cannot_be_read_only_when_it_is_old(self, desk, content):
        name = desk.plant()
        desk.storage.write_bytes(name, content)
        desk.clock.jump(desk.storage.modified(name) - desk.clock.time())
        with pytest.raises(LLMBusyError, match="a run that cannot be told"), desk.lease(PERSON):
            pass
        desk.clock.jump(71)
        with desk.lease(PERSON):
            pass

    def test_storage_that_cannot_be_listed_is_no_free_place(self, desk, monkeypatch):
        monkeypatch.setattr(desk.storage, "files", fail)
        with pytest.raises(LLMStateError), desk.lease():
            pass


class TestRenewal:
    def test_keeps_it_for_as_long_as_it_takes(self, desk):
        with desk.lease() as lease:
            for _ in range(10):
                desk.clock.jump(45)
                lease.renew()
                assert lease.held
                with pytest.raises(LLMBusyError), desk.lease(PERSON):
                    pass

    def test_one_that_comes_too_late_is_none(self, desk):
        with desk.lease() as lease:
            desk.clock.jump(60)
            with pytest.raises(LLMRetryableError, match="not renewed for 60 s"):
                lease.check()
            lease.renew()
            assert not lease.held

    def test_it_is_lost_by_the_holders_clock_before_another_may_take_it(self, desk):
        with desk.lease() as lease:
            desk.clock.jump(60)
            with pytest.raises(LLMBusyError), desk.lease(PERSON):
                pass
            assert not lease.held
            desk.clock.jump(10)
            with desk.lease(PERSON):
                lease.renew()
                assert len(desk.files()) == 1

    def test_a_machine_that_slept_has_lost_it(self, desk):
        asleep = Nap()
        desk.terms = dataclasses.replace(desk.terms, clock=asleep)
        with desk.lease() as lease:
            asleep.seconds = 69.0
            with pytest.raises(LLMBusyError), desk.lease(PERSON):
                pass
            assert not lease.held
            asleep.seconds = 70.0
            with desk.lease(PERSON) as other:
                assert other.held
                lease.renew()
                assert len(desk.files()) == 1

    def test_a_process_that_was_stopped_while_it_renewed_gives_way(self, desk, monkeypatch):
        with desk.lease() as lease:
            real = desk.storage.write_bytes

            def write(name, data, *, lasting):
                monkeypatch.setattr(desk.storage, "write_bytes", real)
                desk.clock.jump(70)
                with desk.lease(PERSON):
                    assert len(desk.files()) == 1
                real(name, data, lasting=lasting)

            desk.clock.jump(15)
            monkeypatch.setattr(desk.storage, "write_bytes", write)
            lease.renew()
            assert not lease.held
            assert desk.files() == []

    def test_one_whose_file_is_gone_is_lost_at_once(self, desk):
        with desk.lease() as lease:
            desk.storage.delete(desk.files()[0])
            lease.renew()
            with pytest.raises(LLMRetryableError, match="taken it over"):
                lease.check()

    def test_storage_that_is_away_for_a_while_costs_nothing(self, desk, monkeypatch):
        with desk.lease() as lease:
            with monkeypatch.context() as away:
                away.setattr(desk.storage, "read_bytes", fail)
                with pytest.raises(LLMStateError):
                    lease.renew()
            desk.clock.jump(59)
            assert lease.held
            lease.renew()
            desk.clock.jump(59)
            assert lease.held

    def test_a_thread_does_it(self, tmp_path):
        renewed = threading.Event()
        terms = LeaseTerms(duration=1000, renewal=0.01)
        layout = Layout(str(tmp_path))
        with Lease(layout, Work.COMPLETE, NIGHTLY, what="x", terms=terms):
            real = layout.storage.read_bytes
            layout.storage.read_bytes = lambda name: (renewed.set(), real(name))[1]
            assert renewed.wait(30)
