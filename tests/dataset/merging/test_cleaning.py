import os

import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from airflow_llm_provider.dataset.files.layout import JOURNALS, LISTINGS, PLANS, RESULTS, SHARDS, Layout
from airflow_llm_provider.dataset.merging.cleaning import Cleaned, clean
from airflow_llm_provider.dataset.plans.plan import read_plan
from airflow_llm_provider.errors import LLMStateError
from airflow_llm_provider.jobs import SplitOptions, split
from airflow_llm_provider.spec import CompletionSpec

OLD, CUT, NEW = 1_000.0, 2_000.0, 3_000.0


class Ages:
    """Sets when files were last written."""

    def __init__(self, bench):
        self.storage = bench.layout.storage
        self.bench = bench

    def set(self, time, *folders):
        for folder in folders or ("",):
            for name in self.bench.files(folder):
                if self.storage.local:
                    os.utime(self.storage.path(name), (time, time))
                else:
                    file = MemoryFileSystem.store[self.storage.path(name)]
                    file.created = file.modified = file.created.fromtimestamp(time, tz=file.created.tzinfo)


@pytest.fixture
def ages(workbench):
    return Ages(workbench)


def stored(bench):
    return {folder: len(bench.files(folder)) for folder in (PLANS, SHARDS, RESULTS)}


class TestClean:
    def test_what_only_old_plans_use_goes(self, workbench, ages, numbers):
        old = workbench.run(numbers(range(10)))
        ages.set(OLD)
        new = workbench.run(numbers([*range(5), *range(20, 25)]))
        ages.set(OLD)
        cleaned = clean(workbench.layout, new, before=CUT)
        assert (cleaned.plans, cleaned.shards, cleaned.answers) == (1, 1, 1)
        assert cleaned.size > 0
        assert stored(workbench) == {PLANS: 1, SHARDS: 2, RESULTS: 2}
        left = {name.rsplit("/", 1)[-1].split(".")[0] for name in workbench.files(RESULTS)}
        assert left == {entry.shard_id for entry in new.shards}
        assert old.shards[1].shard_id not in left
        workbench.merge(new)

    def test_what_a_killed_split_left_of_a_plan_is_no_plan(self, bench, numbers):
        bench.run(numbers(range(10)))
        Ages(bench).set(OLD)
        new = bench.run(numbers(range(20, 25)))
        killed = bench.layout.storage.create(bench.layout.plan("p"))
        killed.__enter__()
        assert clean(bench.layout, new, before=CUT).plans == 1

    def test_nothing_younger_goes(self, workbench, ages, numbers):
        workbench.run(numbers(range(10)))
        new = workbench.run(numbers(range(5, 15)))
        ages.set(NEW)
        assert clean(workbench.layout, new, before=CUT) == Cleaned()
        assert stored(workbench) == {PLANS: 2, SHARDS: 3, RESULTS: 3}

    def test_a_plan_that_was_split_since_keeps_its_old_answers(self, workbench, ages, numbers):
        workbench.run(numbers(range(10)))
        new = workbench.run(numbers(range(50, 60)))
        ages.set(OLD)
        # As every night does: the plan is written anew, its results are only read.
        workbench.split(numbers(range(10)))
        now = max(entry.modified for entry in workbench.layout.storage.entries(PLANS))
        assert clean(workbench.layout, new, before=now - 1) == Cleaned()
        asked = len(workbench.asked)
        workbench.run(numbers(range(10)))
        assert len(workbench.asked) == asked

    def test_a_job_that_runs_for_long_keeps_everything(self, workbench, ages, numbers):
        running = workbench.split(numbers(range(10)))
        workbench.kill(running.shards[0], after=3)
        new = workbench.run(numbers(range(50, 60)))
        ages.set(OLD)
        ages.set(NEW, JOURNALS)
        assert clean(workbench.layout, new, before=CUT) == Cleaned()
        for entry in running.shards:
            workbench.answer(entry)
        assert workbench.asked.count({"x": 0}) == 1

    def test_what_the_current_plan_took_from_others_is_its_own_by_now(self, workbench, ages, numbers):
        workbench.run(numbers(range(10)))
        new = workbench.run(numbers([99, *range(10)]))
        asked = len(workbench.asked)
        ages.set(OLD)
        clean(workbench.layout, new, before=CUT)
        again = workbench.run(numbers([99, *range(10)]))
        assert len(workbench.asked) == asked
        workbench.merge(again)

    def test_what_a_plan_in_use_may_still_take_from_others_stays(self, workbench, ages, numbers):
        old = workbench.run(numbers(range(10)))
        ages.set(OLD)
        # Split anew, and not yet answered.
        recent = workbench.split(numbers([99, *range(10)]))
        new = workbench.run(numbers(range(50, 60)))
        ages.set(NEW)
        ages.set(OLD, RESULTS, SHARDS)
        ages.storage.delete(workbench.layout.plan(old.plan_id))
        cleaned = clean(workbench.layout, new, before=CUT)
        assert (cleaned.shards, cleaned.answers) == (2, 0)
        asked = len(workbench.asked)
        for entry in recent.shards:
            workbench.split(numbers([99, *range(10)]))
            workbench.answer(entry)
        assert [row["x"] for row in workbench.asked[asked:]] == [99]

    def test_a_journal_of_a_shard_that_nobody_has_goes(self, workbench, ages, numbers):
        plan = workbench.split(numbers(range(5)))
        workbench.kill(plan.shards[0], after=3)
        new = workbench.run(numbers(range(50, 60)))
        # Where a file cannot grow, the journal is in as many parts as the machine was slow.
        parts = len(workbench.files(JOURNALS))
        assert parts
        ages.set(OLD)
        cleaned = clean(workbench.layout, new, before=CUT)
        assert (cleaned.plans, cleaned.shards, cleaned.answers) == (1, 1, parts)
        assert workbench.files(JOURNALS) == []
        assert workbench.layout.storage.folders(JOURNALS) == []

    def test_a_plan_in_use_that_cannot_be_read_keeps_everything(self, workbench, ages, numbers):
        old = workbench.run(numbers(range(10)))
        new = workbench.run(numbers(range(50, 60)))
        ages.set(OLD)
        workbench.layout.storage.write_bytes(f"{PLANS}/other.json", b"{")
        now = max(entry.modified for entry in workbench.layout.storage.entries(PLANS))
        with pytest.raises(LLMStateError, match="damaged"):
            clean(workbench.layout, new, before=now - 1)
        assert workbench.layout.storage.exists(workbench.layout.plan(old.plan_id))
        ages.set(OLD, PLANS)
        assert clean(workbench.layout, new, before=CUT).plans == 2

    def test_lists_of_files_that_were_never_planned_go(self, workbench, ages, numbers):
        new = workbench.run(numbers(range(5)))
        storage = workbench.layout.storage
        for name in (
            f"{LISTINGS}/a.json",
            workbench.layout.counted("a-0000"),
            workbench.layout.count("a-0000"),
        ):
            storage.write_bytes(name, b"x")
        ages.set(OLD)
        cleaned = clean(workbench.layout, new, before=CUT)
        assert (cleaned.plans, cleaned.shards, cleaned.size) == (1, 1, 3)

    def test_storage_that_fails_is_no_reason_to_forget(self, workbench, numbers, monkeypatch):
        new = workbench.run(numbers(range(5)))

        def broken(*_, **__):
            raise OSError(5, "broken")

        monkeypatch.setattr(type(workbench.layout.storage._fs), "ls", broken)
        with pytest.raises(LLMStateError, match="could not be listed"):
            clean(workbench.layout, new, before=CUT)


class TestEntries:
    def test_tell_size_and_time(self, workbench):
        storage = workbench.layout.storage
        storage.write_bytes("f/a", b"12345")
        (entry,) = storage.entries("f")
        assert (entry.name, entry.size) == ("f/a", 5)
        assert entry.modified == pytest.approx(storage.modified("f/a"), abs=2)

    def test_ask_for_the_time_where_a_listing_does_not_tell(self, workbench, monkeypatch):
        storage = workbench.layout.storage
        storage.write_bytes("f/a", b"12345")
        listed = storage._fs.ls

        def bare(path, *, detail):
            return [
                {k: v for k, v in e.items() if k in ("name", "type")} for e in listed(path, detail=detail)
            ]

        monkeypatch.setattr(storage._fs, "ls", bare)
        (entry,) = storage.entries("f")
        assert (entry.size, entry.modified) == (0, storage.modified("f/a"))


class TestCounted:
    def test_rows_that_the_current_plan_uses_stay(self, tmp_path):
        (tmp_path / "a.csv").write_text("x\n1\n2\n")
        result = split(
            CompletionSpec(model="m", prompt="{{ x }}", encoding="o200k_base"),
            str(tmp_path / "a.csv"),
            str(tmp_path / "out"),
            options=SplitOptions(split_by="file"),
        )
        layout = Layout(str(tmp_path / "out"))
        plan = read_plan(layout, result.plan_id)
        for path in (tmp_path / "out" / "_llm").rglob("*.*"):
            os.utime(path, (OLD, OLD))
        assert clean(layout, plan, before=CUT) == Cleaned()
        assert pq.read_table(tmp_path / "out" / layout.counted(plan.shards[0].file)).num_rows == 2
