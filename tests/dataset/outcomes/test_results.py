import dataclasses
import io
import itertools

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llm_provider.dataset.files.layout import Layout
from airflow_llm_provider.dataset.files.storage import BrokenFileError
from airflow_llm_provider.dataset.outcomes.columns import OutputColumns
from airflow_llm_provider.dataset.outcomes.record import Record, is_answered
from airflow_llm_provider.dataset.outcomes.results import (
    STEP_ROWS,
    ShardResults,
    fitting,
    read_results_file,
    records_of,
)
from airflow_llm_provider.dataset.plans.shards import ShardKeys
from airflow_llm_provider.engine.call import Outcome
from airflow_llm_provider.engine.status import RowStatus
from airflow_llm_provider.engine.usage import Usage
from airflow_llm_provider.errors import LLMStateError
from airflow_llm_provider.spec import CompletionSpec

TEXT = CompletionSpec(model="m", prompt="{{ x }}")
OBJECT = CompletionSpec(
    model="m",
    prompt="{{ x }}",
    output_schema={"type": "object", "properties": {"label": {"type": "string"}, "n": {"type": "integer"}}},
)
SHARD = "b" * 32


def keys(count):
    return ShardKeys(
        fingerprints=[bytes([n % 256]) * 16 for n in range(count)],
        occurrences=[0] * count,
        tokens=[1] * count,
        statuses=[None] * count,
        errors=[None] * count,
    )


def paid(**changes):
    outcome = Outcome(
        index=-1,
        status=RowStatus.SUCCESS,
        text="words",
        answer="words",
        model="m-1",
        finish_reason="stop",
        usage=Usage(prompt_tokens=5, completion_tokens=4, cached_tokens=3),
        cost_usd=0.25,
        attempts=1,
        latency_ms=12.5,
        request_id="r",
        account="llm_default",
    )
    return dataclasses.replace(outcome, **changes)


def write(bench, outcomes, spec=TEXT):
    ShardResults(spec=spec, keys=keys(len(outcomes)), outcomes=outcomes).write(bench.layout, SHARD)
    return read_results_file(bench.layout, SHARD)


class TestResults:
    def test_a_missing_file_is_none(self, workbench):
        assert read_results_file(workbench.layout, SHARD) is None

    def test_only_successes_have_answers(self, workbench):
        outcomes = [
            paid(),
            paid(status=RowStatus.TRUNCATED, answer=None, code="length", message="hit the cap"),
            Outcome(index=-1, status=RowStatus.ERROR, code="http_503", attempts=3),
            Outcome(index=-1, status=RowStatus.EMPTY_INPUT, message="blank"),
        ]
        table = write(workbench, outcomes)
        rows = table.to_pylist()
        assert [row["answer"] for row in rows] == ["words", None, None, None]
        assert [row["llm_status"] for row in rows] == ["success", "truncated", "error", "empty_input"]
        assert [row["_llm_text"] for row in rows] == [None, "words", None, None]
        assert [row["_llm_answered"] for row in rows] == [True, True, False, False]
        assert [row["llm_error"] for row in rows] == [None, "hit the cap", "http_503", "blank"]
        assert [row["llm_prompt_tokens"] for row in rows] == [5, 5, 0, None]
        assert [row["llm_attempts"] for row in rows] == [1, 1, 3, 0]

    @pytest.mark.parametrize(
        ("spec", "outcome"),
        [
            (TEXT, paid()),
            (TEXT, paid(text=" words\n", answer="words")),
            (TEXT, paid(text="", answer=None, status=RowStatus.EMPTY, code="empty", message="nothing")),
            (OBJECT, paid(text='{"label": "a"}', answer={"label": "a"})),
            (
                OBJECT,
                paid(text='{"label"', answer=None, status=RowStatus.TRUNCATED, code="length", message="m"),
            ),
            (
                OBJECT,
                paid(text=None, answer=None, status=RowStatus.CONTENT_FILTER, code="filter", message="m"),
            ),
        ],
    )
    def test_records_hold_the_models_own_words(self, workbench, spec, outcome):
        table = write(workbench, [outcome], spec)
        (record,) = records_of(table)
        assert record == Record(bytes(16), 0, dataclasses.replace(outcome, answer=None))

    def test_records_are_read_whatever_the_columns_were_called(self, bench):
        spec = CompletionSpec(model="m", prompt="{{ x }}", output_column="wording", metadata_prefix="x_")
        (record,) = records_of(write(bench, [paid()], spec))
        assert record.outcome.text == "words"
        assert record.outcome.request_id == "r"

    def test_a_file_from_before_the_column_of_the_account_is_read(self, bench):
        write(bench, [paid()])
        name = bench.layout.results(SHARD)
        older = pq.read_table(io.BytesIO(bench.layout.storage.read_bytes(name))).drop_columns(["llm_conn_id"])
        with bench.layout.storage.create(name) as file:
            pq.write_table(older, file)
        table = read_results_file(bench.layout, SHARD)
        assert table.column("llm_conn_id").to_pylist() == [None]
        (record,) = records_of(table)
        assert (record.outcome.account, record.outcome.request_id) == (None, "r")

    def test_rows_without_a_paid_answer_are_no_records(self, bench):
        table = write(bench, [Outcome(index=-1, status=RowStatus.ERROR, attempts=2), paid()])
        assert [record.fingerprint for record in records_of(table)] == [b"\x01" * 16]

    def test_D4_halves_of_surrogates_never_reach_the_file(self, bench):
        rows = write(bench, [paid(text="a\ud83d", answer="a\ud83d", message="b\ud83d")]).to_pylist()
        assert rows[0]["answer"] == "a\ufffd"
        assert rows[0]["llm_error"] == "b\ufffd"

    def test_an_answer_that_does_not_fit_its_column_is_invalid_output(self, workbench):
        outcome = paid(text='{"n": 1e30}', answer={"label": "a", "n": 10**30})
        row = write(workbench, [outcome], OBJECT).to_pylist()[0]
        assert row["llm_status"] == "invalid_output"
        assert row["llm_error"] == "property 'n': an integer beyond 64 bits"
        assert row["label"] is None
        assert row["_llm_text"] == '{"n": 1e30}'
        assert row["llm_cost_usd"] == 0.25
        assert row["_llm_answered"]

    def test_fitting_says_so_beforehand(self):
        columns = OutputColumns(OBJECT)
        assert fitting(paid(answer={"label": "a", "n": 3.0}), columns)[1] == ("a", 3)
        assert fitting(paid(answer={"label": 5}), columns)[0].status is RowStatus.INVALID_OUTPUT

    def test_outcomes_must_be_one_per_row(self, bench):
        with pytest.raises(ValueError, match="1 outcomes for the 2 rows"):
            ShardResults(spec=TEXT, keys=keys(2), outcomes=[paid()]).write(bench.layout, SHARD)

    def test_no_rows_make_an_empty_file_with_a_schema(self, workbench):
        table = write(workbench, [])
        assert table.num_rows == 0
        assert "llm_status" in table.column_names

    @given(st.permutations(range(4)), st.lists(st.integers(0, 3 * STEP_ROWS // 2), min_size=4, max_size=4))
    @settings(max_examples=20)
    def test_it_does_not_matter_in_which_order_rows_end(self, order, sizes):
        ends = list(itertools.accumulate(sizes))
        whole = [paid(text=str(index), answer=str(index), index=index) for index in range(ends[-1])]
        outcomes = [None] * len(whole)
        early = ShardResults(spec=TEXT, keys=keys(len(whole)), outcomes=outcomes)
        for piece in order:
            for index in range(ends[piece] - sizes[piece], ends[piece]):
                outcomes[index] = whole[index]
                early.advance()
        layout = Layout("memory://results-as-they-come")
        early.write(layout, SHARD)
        table = read_results_file(layout, SHARD)
        ShardResults(spec=TEXT, keys=keys(len(whole)), outcomes=whole).write(layout, SHARD)
        assert table.equals(read_results_file(layout, SHARD))

    def test_what_is_encoded_is_not_kept_a_second_time(self, bench):
        outcomes = [
            paid(index=index, text=f"words {index}", answer=f"words {index}") for index in range(STEP_ROWS)
        ]
        outcomes[3] = paid(
            status=RowStatus.CONTENT_FILTER, finish_reason="content_filter", code="filtered", index=3
        )
        whole, late = list(outcomes), paid(status=RowStatus.ERROR, code="http_500", attempts=5)
        outcomes.append(late)
        results = ShardResults(spec=TEXT, keys=keys(len(outcomes)), outcomes=outcomes)
        results.advance()
        assert {outcome.text for outcome in outcomes[:-1]} == {None}
        assert len({id(outcome) for outcome in outcomes[:-1]}) == 2
        assert outcomes[-1] is late
        for kept, outcome in zip(outcomes, whole, strict=False):
            assert (kept.status, kept.code, kept.attempts) == (outcome.status, outcome.code, outcome.attempts)
            assert is_answered(kept) == is_answered(outcome)
        results.write(bench.layout, SHARD)
        assert read_results_file(bench.layout, SHARD).column("answer").to_pylist()[:3] == [
            f"words {index}" for index in range(3)
        ]

    def test_what_cannot_be_encoded_is_said_when_every_answer_is_kept(self, bench):
        outcomes = [paid(usage=Usage(prompt_tokens=1 << 70, completion_tokens=1))] * STEP_ROWS
        results = ShardResults(spec=TEXT, keys=keys(STEP_ROWS), outcomes=outcomes)
        results.advance()
        with pytest.raises((OverflowError, pa.ArrowInvalid)):
            results.write(bench.layout, SHARD)

    @given(st.integers(1, 400))
    def test_G14_a_torn_file_is_broken_not_missing(self, cut):
        layout = Layout("memory://torn-results")
        ShardResults(spec=TEXT, keys=keys(3), outcomes=[paid()] * 3).write(layout, SHARD)
        name = layout.results(SHARD)
        layout.storage.write_bytes(name, layout.storage.read_bytes(name)[:-cut])
        with pytest.raises(BrokenFileError):
            read_results_file(layout, SHARD)

    def test_storage_that_fails_is_not_a_broken_file(self, bench):
        bench.layout.storage.write_bytes(f"{bench.layout.results(SHARD)}/folder", b"")
        with pytest.raises(LLMStateError) as caught:
            read_results_file(bench.layout, SHARD)
        assert not isinstance(caught.value, BrokenFileError)
