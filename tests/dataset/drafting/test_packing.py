import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from airflow_llm_provider.dataset.drafting.packing import Budget, Packer, Weights, smallest_budget

ROWS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=60)
BUDGETS = st.builds(
    Budget, tokens=st.integers(1, 80), rows=st.none() | st.integers(1, 9), size=st.none() | st.integers(1, 80)
)


def chunks(rows, size):
    for start in range(0, len(rows), size):
        pairs = np.array(rows[start : start + size], dtype=np.int64).reshape(-1, 2)
        yield pairs[:, 0], pairs[:, 1]


def one_by_one(rows, budget):
    """Pack as one would by hand."""
    shards = []
    for tokens, size in rows:
        if shards:
            last = shards[-1]
            fits = (
                sum(t for t, _ in last) + tokens <= budget.tokens
                and (budget.size is None or sum(s for _, s in last) + size <= budget.size)
                and (budget.rows is None or len(last) < budget.rows)
            )
            if fits:
                last.append((tokens, size))
                continue
        shards.append([(tokens, size)])
    return [(len(shard), sum(t for t, _ in shard)) for shard in shards]


def packed(parts, budget, breaks=()):
    packer = Packer(budget, breaks=breaks)
    for tokens, sizes in parts:
        packer.add(tokens, sizes)
    return packer.finish()


class TestPacker:
    @given(
        rows=ROWS,
        budget=BUDGETS,
        size=st.integers(1, 61),
        breaks=st.sets(st.integers(0, 60)).map(sorted),
    )
    def test_ends_shards_at_breaks_as_if_packed_apart(self, rows, budget, size, breaks):
        cuts = packed(chunks(rows, size), budget, breaks)
        borders = [0, *(b for b in breaks if 0 < b < len(rows)), len(rows)]
        apart = [
            shard
            for start, end in itertools.pairwise(borders)
            for shard in one_by_one(rows[start:end], budget)
        ]
        assert [(cut.rows, cut.tokens) for cut in cuts] == apart

    @given(rows=ROWS, budget=BUDGETS, size=st.integers(1, 61))
    def test_packs_as_one_would_by_hand_whatever_the_batches(self, rows, budget, size):
        cuts = packed(chunks(rows, size), budget)
        assert [(cut.rows, cut.tokens) for cut in cuts] == one_by_one(rows, budget)

    @given(rows=ROWS, budget=BUDGETS)
    def test_loses_nothing_keeps_the_order_and_the_budget(self, rows, budget):
        cuts = packed(chunks(rows, 7), budget)
        assert sum(cut.rows for cut in cuts) == len(rows)
        first = 0
        for cut in cuts:
            assert cut.first_row == first
            assert cut.rows > 0
            shard = rows[first : first + cut.rows]
            assert cut.tokens == sum(tokens for tokens, _ in shard)
            if cut.rows > 1:
                assert cut.tokens <= budget.tokens
                assert budget.rows is None or cut.rows <= budget.rows
                assert budget.size is None or sum(size for _, size in shard) <= budget.size
            first += cut.rows

    def test_D10_a_row_beyond_the_budget_gets_a_shard_of_its_own(self):
        rows = [(300, 0), (400, 0), (1400, 0), (300, 0), (0, 0)]
        cuts = packed(chunks(rows, 2), Budget(tokens=1000))
        assert [(cut.first_row, cut.rows, cut.tokens) for cut in cuts] == [
            (0, 2, 700),
            (2, 1, 1400),
            (3, 2, 300),
        ]

    def test_no_rows_make_no_shards(self):
        assert Packer(Budget(tokens=1)).finish() == ()

    def test_rows_without_tokens_stay_together(self):
        assert len(packed(chunks([(0, 0)] * 50, 7), Budget(tokens=1))) == 1


class TestSmallestBudget:
    @given(rows=ROWS.filter(bool), most=st.integers(1, 10))
    def test_is_the_smallest_that_fits(self, rows, most):
        weights = Weights()
        for tokens, sizes in chunks(rows, 11):
            weights.add(tokens, sizes)
        smallest = smallest_budget(weights, Budget(tokens=1), most)
        weights.close()
        assert len(one_by_one(rows, Budget(tokens=smallest))) <= most
        assert smallest == 1 or len(one_by_one(rows, Budget(tokens=smallest - 1))) > most

    def test_there_is_none_when_other_bounds_keep_the_shards_small(self):
        weights = Weights()
        weights.add(np.ones(10, dtype=np.int64), np.ones(10, dtype=np.int64))
        assert smallest_budget(weights, Budget(tokens=1, rows=2), 4) is None
        assert smallest_budget(weights, Budget(tokens=1, rows=2), 5) == 2
        weights.close()
