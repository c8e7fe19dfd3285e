import collections
import dataclasses
import random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llm_provider.dataset.drafting.donors import DonorSearch
from airflow_llm_provider.dataset.files.layout import Layout
from airflow_llm_provider.dataset.outcomes.journal import JournalWriter
from airflow_llm_provider.dataset.outcomes.record import Record
from airflow_llm_provider.dataset.outcomes.reuse import known_answers
from airflow_llm_provider.dataset.plans.shards import open_shard
from airflow_llm_provider.engine.call import Outcome
from airflow_llm_provider.engine.status import RowStatus
from airflow_llm_provider.errors import LLMStateError
from airflow_llm_provider.spec import CompletionSpec


def answer_all(bench, plan):
    """Answer every shard and return how many requests it took."""
    before = len(bench.asked)
    for entry in plan.shards:
        bench.answer(entry)
    return len(bench.asked) - before


def known(bench, entry):
    with open_shard(bench.layout, entry) as shard:
        return known_answers(bench.layout, entry, shard.keys)


class TestReuse:
    def test_A21_a_finished_run_asks_nothing_again(self, workbench, numbers):
        workbench.run(numbers(range(23)))
        assert len(workbench.asked) == 23
        assert answer_all(workbench, workbench.split(numbers(range(23)))) == 0

    def test_I1_a_killed_shard_asks_only_the_rest(self, workbench, numbers):
        plan = workbench.split(numbers(range(100)), shard_tokens=1000)
        workbench.kill(plan.shards[0], after=50)
        outcomes = workbench.answer(plan.shards[0])
        assert len(workbench.asked) == 100
        assert [outcome.text for outcome in outcomes] == [f"answer {n}" for n in range(100)]
        assert workbench.layout.storage.folders("_llm/journal") == []

    def test_A3_a_prepended_row_is_the_only_new_request(self, workbench, numbers):
        workbench.run(numbers(range(100, 123)))
        plan = workbench.split(numbers([7, *range(100, 123)]))
        assert answer_all(workbench, plan) == 1
        assert workbench.asked[-1] == {"x": 7}
        answer_all(workbench, plan)
        workbench.merge(plan)
        assert workbench.output().column("answer").to_pylist() == [
            "answer 23",
            *(f"answer {n}" for n in range(23)),
        ]

    def test_A3_half_done_shards_help_as_well(self, workbench, numbers):
        plan = workbench.split(numbers(range(10)))
        workbench.kill(plan.shards[1], after=3)
        assert len(workbench.asked) == 3
        assert answer_all(workbench, workbench.split(numbers([99, *range(10)]))) == 11 - 3

    def test_another_shard_size_asks_nothing_again(self, workbench, numbers):
        workbench.run(numbers(range(40)))
        assert answer_all(workbench, workbench.split(numbers(range(40)), shard_tokens=170)) == 0
        assert answer_all(workbench, workbench.split(numbers(range(40)), shard_tokens=20)) == 0

    def test_I2_other_columns_of_the_same_request_ask_nothing_again(self, bench, numbers):
        bench.run(numbers(range(10)))
        bench.spec = dataclasses.replace(bench.spec, output_column="other", metadata_prefix="x_")
        plan = bench.split(numbers(range(10)))
        assert answer_all(bench, plan) == 0
        bench.merge(plan)
        assert bench.output().column("other").to_pylist() == [f"answer {n}" for n in range(10)]

    def test_identical_requests_are_each_asked_once(self, workbench, numbers):
        plan = workbench.run(numbers([1, 1, 2, 1, 2]))
        assert len(workbench.asked) == 5
        assert answer_all(workbench, plan) == 0
        workbench.merge(plan)
        assert workbench.output().column("answer").to_pylist() == [f"answer {n}" for n in range(5)]

    def test_the_kth_identical_row_takes_the_kth_answer(self, workbench, numbers):
        workbench.run(numbers([1, 1, 2]))
        plan = workbench.split(numbers([1, 2, 1, 1]))
        assert answer_all(workbench, plan) == 1
        workbench.merge(plan)
        assert workbench.output().column("answer").to_pylist() == [
            "answer 0",
            "answer 2",
            "answer 1",
            "answer 3",
        ]

    def test_an_answer_that_was_reused_before_counts_once(self, bench, numbers):
        bench.run(numbers([1, 2]))
        bench.run(numbers([3, 1, 2]))
        assert len(bench.asked) == 3
        assert answer_all(bench, bench.split(numbers([4, 1, 1]))) == 2

    def test_failed_rows_are_asked_again_and_only_they(self, workbench, numbers):
        def reply(row, index):
            if row["x"] % 2 and len(workbench.asked) < 10:
                return Outcome(index=index, status=RowStatus.ERROR, code="http_503", attempts=3)
            return workbench.reply(row, index)

        plan = workbench.split(numbers(range(10)), shard_tokens=1000)
        workbench.answer(plan.shards[0], reply=reply)
        workbench.answer(plan.shards[0], reply=reply)
        assert [row["x"] for row in workbench.asked[10:]] == [1, 3, 5, 7, 9]

    @pytest.mark.parametrize(
        ("status", "finish_reason", "again"),
        [("truncated", "length", 0), ("invalid_output", "stop", 0), ("refused", "stop", 0), ("empty", "stop", 0),
         ("content_filter", "content_filter", 0), ("content_filter", None, 3), ("rejected", None, 3), ("error", None, 3)],
    )  # fmt: skip
    def test_only_billed_rows_are_kept(self, bench, numbers, status, finish_reason, again):
        def reply(row, index):
            return Outcome(index=index, status=RowStatus(status), finish_reason=finish_reason, attempts=1)

        plan = bench.split(numbers(range(3)))
        bench.answer(plan.shards[0], reply=reply)
        bench.answer(plan.shards[0])
        assert len(bench.asked) == 3 + again

    def test_a_finished_shard_with_an_open_row_takes_the_answer_that_another_has_meanwhile(
        self, workbench, numbers
    ):
        def reject(row, index):
            if row["x"] == 1:
                return Outcome(index=index, status=RowStatus.REJECTED, attempts=1)
            return workbench.reply(row, index)

        plan = workbench.split(numbers(range(3)))
        workbench.answer(plan.shards[0], reply=reject)
        assert answer_all(workbench, workbench.split(numbers(range(3)), max_rows=1)) == 1
        with workbench.draft(numbers(range(3))) as draft:
            assert draft.answered == 3
        assert answer_all(workbench, workbench.split(numbers(range(3)))) == 0

    def test_identical_rows_are_not_asked_again_however_often_they_are_cut_anew(self, workbench, numbers):
        table = numbers([1, 2, 1, 3, 1, 4, 1, 5, 1, 6])
        assert answer_all(workbench, workbench.split(table, max_rows=1)) == 10
        for rows in (2, 3, None):
            plan = workbench.split(table, max_rows=rows, shard_tokens=1000)
            assert answer_all(workbench, plan) == 0
        workbench.merge(plan)
        assert len(set(workbench.output().column("answer").to_pylist())) == 10

    def test_no_two_rows_of_a_shard_take_the_same_answer(self, bench, numbers):
        bench.run(numbers([1, 1]), max_rows=1)
        plan = bench.split(numbers([1, 1, 2]))
        bench.kill(plan.shards[0], after=2)
        plan = bench.split(numbers([1, 1, 1, 2]))
        assert answer_all(bench, plan) == 2
        bench.merge(plan)
        assert len(set(bench.output().column("answer").to_pylist())) == 4

    def test_start_over_asks_everything_anew(self, workbench, numbers):
        workbench.run(numbers(range(10)))
        assert answer_all(workbench, workbench.split(numbers(range(10)), start_over=True)) == 10
        assert answer_all(workbench, workbench.split(numbers(range(10)))) == 0

    def test_G14_torn_results_are_made_anew_from_other_shards_or_asked_again(self, workbench, numbers):
        plan = workbench.run(numbers(range(10)))
        name = workbench.layout.results(plan.shards[0].shard_id)
        whole = workbench.layout.storage.read_bytes(name)
        workbench.layout.storage.write_bytes(name, whole[: len(whole) // 2])
        found = known(workbench, plan.shards[0])
        assert found.answers == {}
        assert len(found.warnings) == 1
        assert "asked again" in found.warnings[0]
        assert answer_all(workbench, workbench.split(numbers(range(10)))) == 5
        assert answer_all(workbench, workbench.split(numbers(range(10)))) == 0

    def test_G14_a_journal_outlives_torn_results(self, bench, numbers):
        plan = bench.split(numbers(range(5)))
        entry = plan.shards[0]
        bench.kill(entry, after=4)
        bench.layout.storage.write_bytes(bench.layout.results(entry.shard_id), b"PAR1")
        found = known(bench, entry)
        assert len(found.answers) == 4
        bench.answer(entry)
        assert len(bench.asked) == 5
        assert known(bench, entry).warnings == []

    def test_I4_torn_journal_lines_are_reported(self, bench, numbers):
        plan = bench.split(numbers(range(5)))
        bench.kill(plan.shards[0], after=4)
        (name,) = known(bench, plan.shards[0]).journal.files
        data = bench.layout.storage.read_bytes(name)
        bench.layout.storage.write_bytes(name, data[:-10])
        found = known(bench, plan.shards[0])
        assert len(found.answers) == 3
        assert "1 torn or damaged lines" in found.warnings[0]

    def test_a_paid_answer_wins_over_a_failure(self, bench, numbers):
        plan = bench.split(numbers([1]))
        with open_shard(bench.layout, plan.shards[0]) as shard:
            fingerprint = shard.keys.fingerprints[0]
        failed = Outcome(index=0, status=RowStatus.ERROR, attempts=1)
        with JournalWriter(bench.layout, plan.shards[0].shard_id) as journal:
            for outcome in (failed, bench.reply({}, 0), failed):
                journal.append(Record(fingerprint, 0, outcome))
        assert known(bench, plan.shards[0]).answers[fingerprint, 0].outcome.status is RowStatus.SUCCESS

    def test_unreadable_storage_is_not_an_absent_answer(self, bench, numbers):
        plan = bench.split(numbers([1]))
        bench.layout.storage.write_bytes(f"{bench.layout.results(plan.shards[0].shard_id)}/folder", b"")
        with pytest.raises(LLMStateError):
            known(bench, plan.shards[0])

    def test_I2_another_request_never_meets_an_old_answer(self, bench, numbers):
        bench.run(numbers(range(5)))
        bench.spec = CompletionSpec(model="other", prompt="{{ x }}")

        assert answer_all(bench, bench.split(numbers(range(5, 10)))) == 5

    @settings(max_examples=10)
    @given(
        seed=st.integers(0, 2**32),
        nights=st.lists(st.tuples(st.integers(5, 60), st.booleans()), min_size=2, max_size=4),
    )
    def test_no_answer_is_paid_for_twice_however_the_dataset_changes(
        self, make_workbench, numbers, seed, nights
    ):
        rng = random.Random(seed)
        bench = make_workbench("memory")
        rows, answered = list(range(20)), set()
        for tokens, killed in nights:
            rows = [row for row in rows if rng.random() > 0.2]
            for _ in range(rng.randrange(4)):
                rows.insert(rng.randrange(len(rows) + 1), len(answered) + 1000 + rng.randrange(10**6))
            rows = list(dict.fromkeys(rows))
            plan = bench.split(numbers(rows), shard_tokens=tokens)
            for entry in plan.shards:
                bench.kill(entry, after=len(bench.asked) + rng.randrange(5) if killed else 10**9)
            asked = [row["x"] for row in bench.asked]
            assert len(asked) == len(set(asked))
            answered.update(asked)
            if not killed:
                assert set(rows) <= answered
                bench.merge(plan)
                assert bench.output().column("x").to_pylist() == rows


class TestDonorSearch:
    @settings(max_examples=40)
    @given(
        old=st.lists(
            st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), max_size=8, unique=True), max_size=6
        ),
        new=st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=8), min_size=1, max_size=5),
    )
    def test_names_holders_of_as_many_answers_as_a_shard_has_rows(self, old, new):
        """Old shards hold answers, told apart by their latency, that may have been copied from each other."""
        layout = Layout(f"memory://donors-{random.randrange(10**12)}")
        held = {f"{number:032x}": set(answers) for number, answers in enumerate(old)}
        for shard_id, answers in held.items():
            with JournalWriter(layout, shard_id, part_seconds=0) as journal:
                for occurrence, (request, latency) in enumerate(sorted(answers)):
                    outcome = Outcome(index=0, status=RowStatus.SUCCESS, text="t", latency_ms=float(latency))
                    journal.append(Record(fingerprint(request), occurrence, outcome))
        with DonorSearch(layout) as search:
            for index, requests in enumerate(new):
                search.add(index, pa.array([fingerprint(r) for r in requests] + [None], pa.binary(16)))
            findings = search.look([f"{1000 + n:032x}" for n in range(len(new))])
        answered = 0
        for requests, found in zip(new, findings.donors, strict=True):
            assert len(set(found)) == len(found) <= len(requests)
            named = {answer for shard_id in found for answer in held[shard_id]}
            there = {answer for answers in held.values() for answer in answers}
            for request, needed in collections.Counter(requests).items():
                enough = min(needed, sum(answer[0] == request for answer in there))
                assert sum(answer[0] == request for answer in named) >= enough
                answered += enough
        assert findings.answered == answered
        layout.storage.delete_folder("")

    def test_answers_of_one_shard_that_look_the_same_are_different_ones(self, bench, numbers):
        def reply(row, index):
            return Outcome(index=index, status=RowStatus.SUCCESS, text="t", attempts=1, latency_ms=0.0)

        plan = bench.split(numbers([1, 1, 1]))
        bench.answer(plan.shards[0], reply=reply)
        with bench.draft(numbers([2, 1, 1, 1])) as draft:
            assert draft.answered == 3
        assert answer_all(bench, bench.split(numbers([2, 1, 1, 1]))) == 1

    def test_looks_at_nothing_when_every_shard_has_results(self, bench, numbers):
        bench.run(numbers(range(10)))
        plan = bench.split(numbers(range(10)))
        assert [entry.donors for entry in plan.shards] == [(), ()]

    def test_unreadable_results_stop_the_split(self, bench, numbers):
        bench.layout.storage.write_bytes(f"{bench.layout.results('x' * 32)}", b"PAR1")
        assert bench.split(numbers([1])).shards[0].donors == ()


def fingerprint(number):
    return number.to_bytes(16, "little")
