"""Whatever happens to a destination, no answer is paid for twice and no row is lost."""

import dataclasses
import hashlib
import random
from collections import Counter

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llm_provider.dataset.plans.prepared import PreparedRows
from airflow_llm_provider.engine.call import Outcome
from airflow_llm_provider.engine.status import RowStatus


@dataclasses.dataclass(frozen=True)
class Night:
    """One run of a destination, and what changes before it.

    :param edits: rows that are put in or taken out: where, and the text; ``None``: taken out.
    :param max_rows: most rows of a shard.
    :param survives: requests after which a shard is killed.
    :param failing: share of the requests that fail.
    :param alike: whether identical rows of a shard share one answer.
    """

    edits: list
    max_rows: int | None
    survives: int
    failing: float
    alike: bool


NIGHTS = st.builds(
    Night,
    edits=st.lists(
        st.tuples(st.integers(0, 12), st.one_of(st.none(), st.sampled_from("abcdef"))), max_size=6
    ),
    max_rows=st.sampled_from([1, 2, 3, 5, None]),
    survives=st.sampled_from([0, 1, 2, 99, 99, 99]),
    failing=st.sampled_from([0, 0, 0, 0.3]),
    alike=st.sampled_from([False, False, True]),
)


def prepare(batch):
    """Only the text is asked, so that rows may be told apart that make the same request."""
    texts = batch.column("text").to_pylist()
    return PreparedRows(
        tokens=[10] * len(texts),
        fingerprints=[hashlib.blake2b(text.encode(), digest_size=16).digest() for text in texts],
        statuses=[None] * len(texts),
        errors=[None] * len(texts),
    )


class History:
    """A destination over many nights."""

    def __init__(self, bench, rng):
        self.bench = bench
        self.rng = rng
        self.rows = []
        self.made = 0
        self.paid = Counter()
        #: Most rows with a text that one dataset had, and that one finished shard had.
        self.most = Counter()
        self.most_of_shard = Counter()

    def pass_night(self, night):
        self.edit(night.edits)
        table = pa.table(
            {
                "id": pa.array([number for number, _ in self.rows], pa.int64()),
                "text": pa.array([text for _, text in self.rows], pa.string()),
            }
        )
        self.most |= Counter(text for _, text in self.rows)
        self.bench.alike = night.alike
        with self.bench.draft(table, prepare=prepare, max_rows=night.max_rows, shard_tokens=10**6) as draft:
            expected = draft.requests - draft.answered
            plan = draft.commit(created="2026-01-01T00:00:00+00:00")
        before = self.paid.total()
        finished = [self.answer(entry, night) for entry in plan.shards]
        if not night.alike and not night.failing and all(finished):
            assert self.paid.total() - before == expected
        if all(finished):
            self.check_output(plan)

    def edit(self, edits):
        for place, text in edits:
            if text is not None:
                self.made += 1
                self.rows.insert(place, (self.made, text))
            elif place < len(self.rows):
                self.rows.pop(place)

    def answer(self, entry, night):
        finished = []

        def reply(row, index):
            if self.rng.random() < night.failing:
                return Outcome(index=index, status=RowStatus.ERROR, code="http_503", attempts=3)
            self.paid[row["text"]] += 1
            return self.bench.reply(row, index)

        kill_after = len(self.bench.asked) + night.survives
        with self.bench.killable():
            finished = self.bench.answer(entry, reply=reply, kill_after=kill_after)
        texts = [text for _, text in self.rows[entry.first_row : entry.first_row + entry.rows]]
        if finished and not night.alike and not night.failing:
            self.most_of_shard |= Counter(texts)
            paid = [outcome.request_id for outcome in finished if outcome.attempts]
            assert len(set(paid)) == len(paid)
        return bool(finished)

    def check_output(self, plan):
        self.bench.merge(plan)
        output = self.bench.output().select(["id", "text"]).to_pylist()
        assert [(row["id"], row["text"]) for row in output] == self.rows


class TestPaidOnce:
    @settings(max_examples=40)
    @given(seed=st.integers(0, 2**32), nights=st.lists(NIGHTS, min_size=2, max_size=5))
    def test_every_needed_answer_is_paid_for_at_most_once(self, make_workbench, seed, nights):
        history = History(make_workbench("memory"), random.Random(seed))
        ever_alike = False
        for night in nights:
            history.pass_night(night)
            assert history.paid <= history.most
            ever_alike = ever_alike or night.alike
            assert ever_alike or history.most_of_shard <= history.paid
