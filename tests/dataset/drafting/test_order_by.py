"""Rows of like size share shards, and come out in the order of the input."""

import itertools
from functools import partial

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llm_provider.dataset.arrow.content_hash import ContentHash
from airflow_llm_provider.dataset.drafting import draft
from airflow_llm_provider.dataset.plans.plan import read_plan
from airflow_llm_provider.dataset.plans.prepared import PreparedRows
from airflow_llm_provider.dataset.plans.shards import open_shard
from airflow_llm_provider.dataset.plans.window import SortingWindow
from airflow_llm_provider.testing.arrow_tables import tables


def sized(batch):
    """Prepare rows that have as many tokens as their number says; those with 13 are not sent."""
    values = batch.column("x").to_pylist()
    return PreparedRows(
        tokens=values,
        fingerprints=[None if x == 13 else x.to_bytes(16, "little") for x in values],
        statuses=["rejected" if x == 13 else None for x in values],
        errors=["no" if x == 13 else None for x in values],
    )


def tokens_of(bench, entry):
    with open_shard(bench.layout, entry) as shard:
        pairs = zip(shard.keys.tokens, shard.keys.fingerprints, strict=True)
        return [0 if fingerprint is None else tokens for tokens, fingerprint in pairs]


@pytest.fixture
def short_runs(monkeypatch):
    """Make a run of every 20 rows."""
    monkeypatch.setattr(draft, "SortingWindow", partial(SortingWindow, rows=20))


NUMBERS = [7 * n % 40 + 1 for n in range(50)]


class TestOrderByTokens:
    def test_like_goes_with_like_and_the_output_keeps_the_order(self, workbench, numbers):
        plan = workbench.run(numbers(NUMBERS), prepare=sized, order_by="tokens")
        tokens = [tokens_of(workbench, entry) for entry in plan.shards]
        assert list(itertools.chain(*tokens)) == sorted(0 if x == 13 else x for x in NUMBERS)
        workbench.merge(plan)
        assert workbench.output().column("x").to_pylist() == NUMBERS
        answers = workbench.output().column("answer").to_pylist()
        assert [answer is None for answer in answers] == [x == 13 for x in NUMBERS]

    def test_every_answer_stays_with_its_row(self, bench, numbers):
        plan = bench.run(numbers(NUMBERS), prepare=sized, order_by="tokens")
        bench.merge(plan)
        answers = dict(zip(NUMBERS, bench.output().column("answer").to_pylist(), strict=True))
        asked = [row["x"] for row in bench.asked]
        assert {x: answers[x] for x in NUMBERS if x != 13} == {
            x: f"answer {len(asked) - 1 - asked[::-1].index(x)}" for x in asked
        }

    @pytest.mark.usefixtures("short_runs")
    def test_runs_are_sorted_and_cut_each_by_itself(self, workbench, numbers):
        plan = workbench.split(numbers(NUMBERS), prepare=sized, order_by="tokens", shard_tokens=150)
        # A run ends with the batch that fills it.
        assert [entry.first_row for entry in plan.shards] == [0, 0, 0, 21, 21, 21, 42, 42]
        assert read_plan(workbench.layout, plan.plan_id) == plan
        for _, entries in itertools.groupby(plan.shards, key=lambda entry: entry.first_row):
            tokens = [count for entry in entries for count in tokens_of(workbench, entry)]
            assert tokens == sorted(tokens)
        for entry in plan.shards:
            workbench.answer(entry)
        workbench.merge(plan)
        assert workbench.output().column("x").to_pylist() == NUMBERS

    @pytest.mark.usefixtures("short_runs")
    def test_A1_no_enlarged_shard_holds_rows_of_two_runs(self, workbench, numbers):
        options = {"prepare": sized, "order_by": "tokens", "shard_tokens": 10, "max_shards": 4}
        with workbench.draft(numbers(NUMBERS), enlarge=True, **options) as made:
            assert made.asked_shards > 4
            plan = made.commit(created="t")
        assert {entry.first_row for entry in plan.shards} == {0, 21, 42}
        assert len(plan.shards) <= 4
        for entry in plan.shards:
            workbench.answer(entry)
        workbench.merge(plan)
        assert workbench.output().column("x").to_pylist() == NUMBERS

    def test_A17_labels_name_no_neighbours(self, bench, numbers):
        plan = bench.split(numbers(NUMBERS), prepare=sized, order_by="tokens")
        assert plan.shards[0].label.startswith("shard 0000 · ")
        assert plan.shards[0].label.endswith(f" rows · {plan.shards[0].tokens} tok")
        plan = bench.split(numbers([3]), prepare=sized, order_by="tokens")
        assert plan.shards[0].label == "shard 0000 · 1 row · 3 tok"

    def test_another_order_asks_nothing_again(self, workbench, numbers):
        workbench.run(numbers(NUMBERS), prepare=sized)
        asked = len(workbench.asked)
        workbench.run(numbers(NUMBERS), prepare=sized, order_by="tokens")
        workbench.run(numbers(NUMBERS[5:]), prepare=sized, order_by="tokens")
        assert len(workbench.asked) == asked

    def test_A2_no_rows_make_no_shards(self, bench, numbers):
        assert bench.split(numbers([]), order_by="tokens").shards == ()

    @settings(max_examples=10)
    @given(table=tables(), rows=st.integers(1, 9), budget=st.integers(1, 60))
    def test_holds_every_value_bit_for_bit(self, make_workbench, monkeypatch, table, rows, budget):
        monkeypatch.setattr(draft, "SortingWindow", partial(SortingWindow, rows=rows))
        bench = make_workbench("memory")

        def prepare(batch):
            count = batch.num_rows
            return PreparedRows(
                tokens=[(n * 7) % 5 for n in range(count)],
                fingerprints=[n.to_bytes(16, "little") for n in range(count)],
                statuses=[None] * count,
                errors=[None] * count,
            )

        plan = bench.run(table, prepare=prepare, order_by="tokens", shard_tokens=budget, batch_rows=3)
        bench.merge(plan)
        output = bench.output().select(table.column_names)
        assert output.schema.equals(table.schema)
        assert digest(output) == digest(table)


def digest(table: pa.Table) -> str:
    content = ContentHash(table.schema, b"")
    for batch in table.to_batches():
        content.update(batch)
    return content.hexdigest()
