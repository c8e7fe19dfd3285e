"""Groups of input files, counted and cut each by itself, are one plan."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llm_provider.dataset import read_results
from airflow_llm_provider.dataset.drafting import draft
from airflow_llm_provider.dataset.drafting.file_groups import group_files
from airflow_llm_provider.dataset.files.layout import Layout
from airflow_llm_provider.dataset.plans.plan import Plan, read_plan
from airflow_llm_provider.dataset.plans.window import SortingWindow
from airflow_llm_provider.errors import LLMInputError, LLMStateError
from airflow_llm_provider.jobs import SplitOptions, count_files, list_files, plan_shards, split
from airflow_llm_provider.xcom import GroupReference

if TYPE_CHECKING:
    from collections.abc import Sequence


class Folder:
    """A dataset of many files, split in three steps."""

    def __init__(self, job: Any) -> None:
        self.job = job
        self.path = Path(job.folder, "in")
        self.path.mkdir()
        self.layout = Layout(job.destination)

    def write(self, *files: Sequence[str | None]) -> None:
        for number, texts in enumerate(files):
            ids = [number * 100 + n for n in range(len(texts))]
            table = pa.table({"id": pa.array(ids, pa.int64()), "text": pa.array(texts, pa.string())})
            pq.write_table(table, self.path / f"{number}.parquet")

    def list(self, **options: Any) -> list[GroupReference]:
        """List, a file in each group, and let the references cross XCom."""
        options = {"split_by": "file", "split_bytes": 1, "max_rows_per_shard": 3, **options}
        found = list_files(
            self.job.spec, str(self.path), self.job.destination, options=SplitOptions(**options)
        )
        return [GroupReference.from_json(json.loads(json.dumps(item.to_json()))) for item in found]

    def count(self, reference: GroupReference) -> Any:
        return count_files(reference, self.job.destination)

    def plan(self, listing: str) -> Plan:
        result = plan_shards(listing, self.job.destination, clock=self.job.clock)
        assert result.plan_id is not None
        return read_plan(self.layout, result.plan_id)

    def split(self, **options: Any) -> Plan:
        references = self.list(**options)
        for reference in references:
            self.count(reference)
        return self.plan(references[0].listing)

    def run(self, **options: Any) -> Any:
        """All steps in one process."""
        options = {"split_by": "file", "split_bytes": 1, "max_rows_per_shard": 3, **options}
        return self.job.run(**options)

    def stored(self, folder: str) -> list[str]:
        return sorted(path.name for path in Path(self.job.destination, "_llm", folder).glob("*"))


@pytest.fixture
def folder(job: Any, monkeypatch: pytest.MonkeyPatch) -> Folder:
    made = Folder(job)
    monkeypatch.setattr(type(job), "source", property(lambda _: str(made.path)))
    return made


FILES = (["a", "b", "c", "d"], [], ["e", None, "f"], ["g"])


class TestPlan:
    def test_is_the_split_of_each_group_one_after_the_other(self, folder: Folder, tmp_path: Path) -> None:
        folder.write(*FILES)
        plan = folder.split()
        alone = []
        for path in sorted(folder.path.iterdir()):
            result = split(
                folder.job.spec,
                str(path),
                str(tmp_path / path.stem),
                options=SplitOptions(max_rows_per_shard=3),
            )
            alone += [(r.shard_id, r.rows, r.tokens) for r in result.references]
        assert [(e.shard_id, e.rows, e.tokens) for e in plan.shards] == alone
        assert [(e.index, e.first_row) for e in plan.shards] == [(0, 0), (1, 3), (2, 4), (3, 7)]
        assert [file["uri"] for file in plan.source] == sorted(map(str, folder.path.iterdir()))

    def test_is_the_same_in_any_order_of_counting_and_in_one_process(self, folder: Folder) -> None:
        folder.write(*FILES)
        references = folder.list()
        for reference in reversed(references):
            folder.count(reference)
        plan = folder.plan(references[0].listing)
        assert folder.split() == plan
        options = SplitOptions(split_by="file", split_bytes=1, max_rows_per_shard=3)
        one = split(folder.job.spec, str(folder.path), folder.job.destination, options=options)
        assert one.plan_id == plan.plan_id

    def test_A18_references_are_small_and_say_what_a_group_is(self, folder: Folder) -> None:
        folder.write(*FILES)
        first = folder.list()[0]
        assert first.label == f"file 0 · {first.size / 1e6:.1f} MB"
        assert len(json.dumps(first.to_json())) < 200

    def test_equal_files_are_shards_of_their_own(self, folder: Folder) -> None:
        for number in range(3):
            pq.write_table(pa.table({"text": ["same", "same"]}), folder.path / f"{number}.parquet")
        plan = folder.split(max_rows_per_shard=1)
        assert len({entry.shard_id for entry in plan.shards}) == 6

    def test_small_files_share_a_group(self, folder: Folder) -> None:
        folder.write(*FILES)
        assert [(r.first, r.files) for r in folder.list(split_bytes=1 << 20)] == [(0, 4)]
        assert [entry.rows for entry in folder.split(split_bytes=1 << 20).shards] == [3, 3, 2]

    def test_a_trial_takes_the_first_rows_of_all(self, folder: Folder) -> None:
        folder.write(*FILES)
        assert folder.split(limit=5).rows == 5

    def test_takes_columns_and_rows_of_all(self, folder: Folder, caplog: Any) -> None:
        folder.write(*FILES)
        caplog.set_level("INFO")
        plan = folder.split(columns=["id"], where="id >= 200")
        assert plan.carried == ("id",)
        assert plan.rows == 4
        assert plan.selection["rows_left_out"] == 4
        assert "where left out 4 of the rows read" in caplog.text
        one = split(
            folder.job.spec,
            str(folder.path),
            folder.job.destination,
            options=SplitOptions(columns=["id"], where="id >= 200", limit=4),
        )
        assert one.estimate.rows == 4

    def test_needs_a_condition_that_other_tasks_can_read(self, folder: Folder) -> None:
        folder.write(*FILES)
        with pytest.raises(LLMInputError, match="give a condition as text"):
            folder.split(where=pc.field("id") > 1)

    def test_G1_H9_types_are_those_of_all_files(self, folder: Folder) -> None:
        for number, row in enumerate(({"text": "x", "n": 1}, {"text": "y", "n": 1.5}, {"text": "z"})):
            (folder.path / f"{number}.jsonl").write_text(json.dumps(row) + "\n")
        folder.run()
        table = read_results(folder.job.destination)
        assert table.column("n").to_pylist() == [1.0, 1.5, None]
        assert table.schema.field("n").type == pa.float64()

    def test_A2_no_rows_make_a_plan_without_shards(self, folder: Folder) -> None:
        folder.write([], [])
        assert folder.split().shards == ()


class TestAnswers:
    def test_come_out_in_the_order_of_the_files(self, folder: Folder) -> None:
        folder.write(*FILES)
        folder.run()
        rows = folder.job.output()
        assert [row["text"] for row in rows] == [text for texts in FILES for text in texts]
        assert [row["id"] for row in rows] == [0, 1, 2, 3, 200, 201, 202, 300]
        assert [row["answer"] for row in rows if row["text"]] == [f"answer to {c}" for c in "abcdefg"]

    def test_A6_are_reused_however_the_split_is_done(self, folder: Folder) -> None:
        folder.write(*FILES)
        folder.run()
        assert folder.job.requests() == 7
        for options in ({}, {"split_by": None}, {"max_rows_per_shard": 2}, {"split_bytes": 1 << 20}):
            summary = folder.run(**options)
            assert (folder.job.requests(), summary.reused) == (0, 7)

    def test_A3_of_a_new_file_alone_are_asked(self, folder: Folder) -> None:
        folder.write(*FILES)
        folder.run()
        folder.job.requests()
        folder.write(["new"], *FILES)
        assert folder.split().estimate["answered"] == 7
        folder.run()
        assert folder.job.calls == ["new"]

    def test_are_forgotten_on_purpose(self, folder: Folder) -> None:
        folder.write(*FILES)
        folder.run()
        folder.job.requests()
        folder.run(start_over=True)
        assert folder.job.requests() == 7


class TestOrderByTokens:
    FILES = (["a " * (7 * n % 11) + "a" for n in range(11)], ["b " * n + "b" for n in range(5, 0, -1)])

    def test_sorts_each_group_and_keeps_the_order_of_the_output(self, folder: Folder) -> None:
        folder.write(*self.FILES)
        plan = folder.split(order_by="tokens")
        assert [entry.first_row for entry in plan.shards] == [0, 0, 0, 0, 11, 11]
        folder.run(order_by="tokens")
        assert [row["text"] for row in folder.job.output()] == [t for file in self.FILES for t in file]

    def test_A1_puts_together_shards_of_one_run_only(self, folder: Folder, monkeypatch: Any) -> None:
        monkeypatch.setattr(draft, "SortingWindow", partial(SortingWindow, rows=4))
        monkeypatch.setattr("airflow_llm_provider.dataset.drafting.split.BATCH_ROWS", 4)
        options = {"order_by": "tokens", "max_rows_per_shard": None, "shard_tokens": 1, "max_shards": 8}
        folder.write(*self.FILES)
        plan = folder.split(fit_max_shards=True, **options)
        assert len(plan.shards) <= 8
        assert len({entry.first_row for entry in plan.shards}) >= 2
        folder.run(fit_max_shards=True, **options)
        assert [row["text"] for row in folder.job.output()] == [t for file in self.FILES for t in file]

    def test_by_anything_else_is_refused(self) -> None:
        with pytest.raises(LLMInputError, match="order_by is 'rows': give 'tokens' or None"):
            SplitOptions(order_by="rows")


class TestTooManyShards:
    def test_A1_fail_and_nothing_stays(self, folder: Folder) -> None:
        folder.write(["a"] * 9, ["b"] * 9)
        references = folder.list(max_rows_per_shard=None, shard_tokens=10, max_shards=5, fit_max_shards=False)
        for reference in references:
            folder.count(reference)
        with pytest.raises(LLMInputError, match=r"18 shards of up to 10 tokens.* to (\d+) or more") as caught:
            folder.plan(references[0].listing)
        assert "max_shards allows 5" in str(caught.value)
        assert folder.stored("counted") == folder.stored("listings") == folder.stored("shards") == []
        fitting = int(str(caught.value).split("shard_tokens to ")[1].split()[0])
        plan = folder.split(max_rows_per_shard=None, shard_tokens=fitting, max_shards=5, fit_max_shards=False)
        assert len(plan.shards) <= 5

    def test_A1_or_neighbours_are_put_together(self, folder: Folder, caplog: Any) -> None:
        folder.write(["a"] * 9, ["b"] * 7)
        options = {"max_rows_per_shard": None, "shard_tokens": 10, "max_shards": 5}
        plan = folder.split(**options)
        assert "16 shards of up to 10 tokens are more than max_shards (5)" in caplog.text
        assert 2 <= len(plan.shards) <= 5
        assert sum(entry.rows for entry in plan.shards) == 16
        assert all(entry.tokens <= plan.settings.shard_tokens for entry in plan.shards)
        folder.run(**options)
        assert [row["text"] for row in folder.job.output()] == ["a"] * 9 + ["b"] * 7

    def test_A1_also_when_one_group_alone_has_more_than_a_file_holds_well(
        self, folder: Folder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("airflow_llm_provider.jobs.splitting.split_by_file._MOST_IN_A_GROUP", 4)
        folder.write(["a"] * 9, ["b"])
        references = folder.list(max_rows_per_shard=None, shard_tokens=10, max_shards=9, fit_max_shards=True)
        assert len(folder.count(references[0]).shards) <= 4
        folder.count(references[1])
        plan = folder.plan(references[0].listing)
        assert len(plan.shards) <= 9
        assert all(entry.tokens <= plan.settings.shard_tokens for entry in plan.shards)

    def test_A1_a_bound_on_rows_that_never_fits_names_itself(self, folder: Folder) -> None:
        folder.write(["a"] * 4, ["b"] * 4)
        with pytest.raises(LLMInputError, match="max_rows_per_shard from 1 to at least 3"):
            folder.split(max_rows_per_shard=1, max_shards=3, fit_max_shards=True)


class TestChangedFiles:
    def test_between_listing_and_counting_are_an_error(self, folder: Folder) -> None:
        folder.write(*FILES)
        first, second, *_ = folder.list()
        os.utime(folder.path / "0.parquet", (1, 1))
        folder.count(second)
        with pytest.raises(LLMInputError, match=r"changed since it was listed .*0\.parquet"):
            folder.count(first)

    @pytest.mark.parametrize("change", ["touch", "add", "remove", "remove all"])
    def test_between_counting_and_planning_are_an_error(self, folder: Folder, change: str) -> None:
        folder.write(*FILES)
        references = folder.list()
        for reference in references:
            folder.count(reference)
        if change == "touch":
            os.utime(folder.path / "3.parquet", (1, 1))
        elif change == "add":
            folder.write(*FILES, ["new"])
        else:
            for path in sorted(folder.path.iterdir())[-1 if change == "remove" else 0 :]:
                path.unlink()
        with pytest.raises(LLMInputError, match="changed since it was listed"):
            folder.plan(references[0].listing)


class TestCounting:
    def test_that_is_not_done_is_named(self, folder: Folder) -> None:
        folder.write(*FILES)
        references = folder.list()
        folder.count(references[1])
        with pytest.raises(LLMStateError, match="3 of 4 groups of input files are not counted: 0, 2, 3"):
            folder.plan(references[0].listing)

    def test_A27_that_is_killed_leaves_nothing_and_is_done_again(
        self, folder: Folder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder.write(*FILES)
        references = folder.list()
        with monkeypatch.context() as patch:
            patch.setattr(
                pq.ParquetWriter, "write_table", lambda *_, **__: (_ for _ in ()).throw(MemoryError)
            )
            with pytest.raises(MemoryError):
                folder.count(references[0])
        assert folder.stored("counted") == []
        for reference in references:
            folder.count(reference)
        assert folder.plan(references[0].listing).rows == 8

    def test_of_a_prompt_that_fits_no_row_stops_at_the_plan(self, job: Any, folder: Folder) -> None:
        job.spec = type(job.spec)(**{**job.spec.to_json(), "prompt": "{{ text[99].x }}"})
        folder.write(["a"], ["b"])
        with pytest.raises(LLMInputError, match="cannot be rendered for any of the 2 rows"):
            folder.split()
        assert folder.stored("counted") == []

    def test_cut_short_afterwards_asks_for_the_split(self, folder: Folder) -> None:
        folder.write(["a", "b"])
        plan = folder.split()
        name = folder.layout.counted(plan.shards[0].file)
        folder.layout.storage.write_bytes(name, b"PAR1")
        reference = plan.references(folder.layout)[0]
        with pytest.raises(LLMStateError, match="clear the split and everything after it"):
            folder.job.shard_run(reference).run()

    def test_without_a_listing_says_what_to_clear(self, folder: Folder) -> None:
        reference = GroupReference(listing="0" * 16, index=0, first=0, files=1, size=1)
        with pytest.raises(LLMStateError, match="clear the task that lists the files"):
            folder.count(reference)
        folder.layout.storage.write_bytes(folder.layout.listing("0" * 16), b'{"listing_version": 2}')
        with pytest.raises(LLMStateError, match="version 2, this version of .* reads 1"):
            folder.count(reference)
        folder.layout.storage.write_bytes(folder.layout.listing("0" * 16), b'{"listing_version": 1}')
        with pytest.raises(LLMStateError, match="damaged"):
            folder.count(reference)


class TestGroups:
    @given(
        sizes=st.lists(st.integers(0, 50), min_size=1, max_size=40),
        most_bytes=st.integers(1, 60),
        most_groups=st.integers(1, 10) | st.none(),
    )
    def test_hold_every_file_once_and_keep_their_bounds(
        self, sizes: list[int], most_bytes: int, most_groups: int | None
    ) -> None:
        groups = group_files(sizes, most_bytes=most_bytes, most_groups=most_groups)
        assert sum(groups) == len(sizes)
        assert min(groups) >= 1
        if most_groups is None:
            first = 0
            for count in groups:
                assert count == 1 or sum(sizes[first : first + count]) <= most_bytes
                first += count
            longer = group_files([*sizes, 7], most_bytes=most_bytes, most_groups=None)
            assert longer[: len(groups) - 1] == groups[:-1]
        else:
            assert len(groups) <= most_groups

    def test_ten_thousand_files_are_no_ten_thousand_tasks(self) -> None:
        groups = group_files([1 << 20] * 10_000, most_bytes=64 << 20, most_groups=1024)
        assert groups == (64,) * 156 + (16,)
        assert len(group_files([1 << 30] * 10_000, most_bytes=64 << 20, most_groups=1024)) <= 1024
