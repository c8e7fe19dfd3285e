from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llm_provider.engine.status import RowStatus
from airflow_llm_provider.engine.usage import Usage
from airflow_llm_provider.errors import LLMInputError
from airflow_llm_provider.xcom import MAX_REFERENCE_BYTES, RunSummary, ShardReference, ShardState

COUNTS = st.integers(0, 10**9)
USAGES = st.builds(Usage, prompt_tokens=COUNTS, completion_tokens=COUNTS, cached_tokens=COUNTS)
MONEY = st.none() | st.floats(0, 10**6)
BY_STATUS = st.dictionaries(st.sampled_from([status.value for status in RowStatus]), COUNTS)
REFERENCES = st.builds(
    ShardReference,
    plan=st.text(),
    shard_id=st.text(),
    index=COUNTS,
    rows=COUNTS,
    tokens=COUNTS,
    label=st.text(),
)
STATES = st.builds(
    ShardState,
    shard=REFERENCES,
    status=st.sampled_from(["success", "failed", "interrupted"]),
    rows_by_status=BY_STATUS,
    reused=COUNTS,
    usage=USAGES,
    cost_usd=MONEY,
    files=st.lists(st.text()).map(tuple),
    errors=st.dictionaries(st.text(), COUNTS),
    message=st.none() | st.text(),
)
SUMMARIES = st.builds(
    RunSummary,
    plan_id=st.text(),
    destination=st.text(),
    manifest=st.text(),
    rows=COUNTS,
    rows_by_status=BY_STATUS,
    shards=COUNTS,
    usage=USAGES,
    cost_usd=MONEY,
    output_usage=USAGES,
    output_cost_usd=MONEY,
    files=st.lists(st.text()).map(tuple),
    rejects=st.none() | st.text(),
)
REFERENCE = ShardReference(plan="p", shard_id="s", index=0, rows=1, tokens=2, label="l")
STATE = ShardState(shard=REFERENCE, status="success", rows_by_status={"success": 1})
SUMMARY = RunSummary(
    plan_id="p", destination="d", manifest="m", rows=1, rows_by_status={"success": 1}, shards=1
)
KINDS = pytest.mark.parametrize("value", [REFERENCE, STATE, SUMMARY], ids=lambda value: type(value).__name__)


def plain(value) -> bool:
    """Say whether a value consists of JSON's own Python types and nothing that merely looks like them."""
    if type(value) is dict:
        return all(type(key) is str and plain(item) for key, item in value.items())
    if type(value) is list:
        return all(map(plain, value))
    return value is None or type(value) in (str, int, float, bool)


class TestRoundTrip:
    @given(REFERENCES | STATES | SUMMARIES)
    def test_B6_plain_json_crosses_and_the_same_comes_back(self, original):
        sent = original.to_json()
        assert plain(sent)
        assert type(original).from_json(json.loads(json.dumps(sent))) == original

    def test_B6_row_statuses_travel_as_text(self):
        state = ShardState(shard=REFERENCE, status=RowStatus.SUCCESS, rows_by_status={RowStatus.EMPTY: 1})
        assert plain(state.to_json())
        assert state.to_json()["rows_by_status"] == {"empty": 1}

    @KINDS
    def test_fields_that_a_later_minor_version_added_are_ignored(self, value):
        sent = {**value.to_json(), "new": 1}
        if "usage" in sent:
            sent["usage"] = {**sent["usage"], "audio_tokens": 5}
        assert type(value).from_json(sent) == value


class TestReading:
    @KINDS
    @pytest.mark.parametrize("version", [None, 0, 2, "1"])
    def test_another_schema_version_is_refused_with_the_remedy(self, value, version):
        with pytest.raises(LLMInputError, match="schema_version.*clear the split task"):
            type(value).from_json({**value.to_json(), "schema_version": version})

    @KINDS
    def test_missing_fields_are_named(self, value):
        with pytest.raises(LLMInputError, match="lacks"):
            type(value).from_json({"schema_version": 1})

    @KINDS
    @pytest.mark.parametrize("nothing", [None, [], "text", 5])
    def test_A9_what_is_no_mapping_is_refused_by_name(self, value, nothing):
        with pytest.raises(LLMInputError, match="a mapping, and got"):
            type(value).from_json(nothing)

    def test_a_state_without_its_shard_or_with_odd_usage_is_refused(self):
        with pytest.raises(LLMInputError, match="shard reference"):
            ShardState.from_json({**STATE.to_json(), "shard": None})
        with pytest.raises(LLMInputError, match="token counts"):
            ShardState.from_json({**STATE.to_json(), "usage": 5})


class TestSize:
    def test_A18_a_reference_stays_small(self):
        reference = ShardReference(
            plan=f"s3://a-bucket-of-usual-length/team/dataset/ds=2024-02-29/_llm/plans/{'f' * 32}.json",
            shard_id="f" * 32,
            index=1023,
            rows=500,
            tokens=199_999,
            label="shard 1023 · rows 511500-511999 · 200k tok",
        )
        assert len(json.dumps(reference.to_json()).encode()) <= MAX_REFERENCE_BYTES


class TestRunSummary:
    def test_succeeded_counts_rows_with_an_answer(self):
        assert SUMMARY.succeeded == 1
        assert RunSummary(**{**vars(SUMMARY), "rows_by_status": {"error": 1}}).succeeded == 0
