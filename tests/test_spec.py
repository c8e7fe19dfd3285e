from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from airflow_llm_provider import CompletionSpec
from airflow_llm_provider.answers import AnswerJudge
from airflow_llm_provider.errors import LLMInputError
from airflow_llm_provider.prompt import PromptTemplate, RequestShape


class Ticket(BaseModel):
    label: str
    urgency: int | None = None


class Node(BaseModel):
    name: str
    children: list[Node] = []


def spec(**changes) -> CompletionSpec:
    return CompletionSpec(**{"model": "m", "prompt": "{{ a }}", **changes})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda leaf: st.lists(leaf, max_size=3) | st.dictionaries(st.text(), leaf, max_size=3),
    max_leaves=8,
)
NAMES = st.text(min_size=1).filter(str.strip)
SPECS = st.builds(
    CompletionSpec,
    model=NAMES,
    prompt=NAMES,
    system=st.none() | st.text(),
    output_schema=st.none()
    | st.fixed_dictionaries(
        {"type": st.just("object"), "properties": st.dictionaries(st.text(), JSON, min_size=1, max_size=3)}
    )
    | st.sampled_from([Ticket, Node]),
    max_output_tokens=st.integers(1, 10**6),
    temperature=st.none() | st.floats(0, 2) | st.integers(0, 2),
    request_params=st.dictionaries(st.sampled_from(["seed", "top_p", "reasoning_effort", "x"]), JSON),
    context_window=st.none() | st.integers(10**6 + 1, 10**7),
    encoding=st.none() | st.sampled_from(["o200k_base"]),
    output_column=NAMES,
    metadata_prefix=NAMES,
)


class TestRoundTrip:
    @given(SPECS)
    def test_a_plan_gives_back_the_same_spec(self, original):
        again = CompletionSpec.from_json(json.loads(json.dumps(original.to_json())))
        assert again == original
        assert again.fingerprint == original.fingerprint
        assert json.loads(json.dumps(again.to_json())) == again.to_json()

    def test_a_spec_of_a_newer_version_is_refused_by_name(self):
        with pytest.raises(LLMInputError, match="unknown fields top_k: a newer version"):
            CompletionSpec.from_json({**spec().to_json(), "top_k": 1})

    def test_what_is_handed_out_is_a_copy(self):
        one = spec(request_params={"a": [1]}, output_schema=Ticket)
        frozen = one.to_json()
        frozen["request_params"]["a"].append(2)
        frozen["output_schema"]["properties"].clear()
        assert one.request_params == {"a": [1]}
        assert set(one.output_schema["properties"]) == {"label", "urgency"}

    def test_what_is_handed_in_is_copied(self):
        params, schema = {"stop": ["a"]}, {"type": "object", "properties": {"a": {}}}
        one = spec(request_params=params, output_schema=schema)
        before = one.fingerprint
        params["stop"].append("b")
        schema["properties"]["b"] = {}
        assert one.fingerprint == before


class TestFingerprint:
    def test_is_the_same_in_every_process(self):
        code = "from airflow_llm_provider import CompletionSpec as C; print(C(model='m', prompt='p').fingerprint)"
        found = {subprocess.check_output([sys.executable, "-c", code], text=True).strip() for _ in range(2)}
        assert found == {CompletionSpec(model="m", prompt="p").fingerprint}
        assert len(found.pop()) == 32

    @pytest.mark.parametrize(
        "change",
        [
            {"model": "n"},
            {"prompt": "{{ b }}"},
            {"system": "s"},
            {"output_schema": Ticket},
            {"max_output_tokens": 7},
            {"temperature": 0},
            {"request_params": {"seed": 1}},
            {"output_column": "x"},
            {"metadata_prefix": "x_"},
        ],
    )
    def test_I2_changes_with_everything_that_shapes_requests_or_columns(self, change):
        assert spec(**change).fingerprint != spec().fingerprint

    def test_I2_does_not_change_with_spelling(self):
        assert spec(temperature=0).fingerprint == spec(temperature=0.0).fingerprint
        assert spec(request_params={"a": (1,), "b": 2}) == spec(request_params={"b": 2, "a": [1]})


class TestValidation:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"model": ""}, "model is ''"),
            ({"model": None}, "model is None"),
            ({"prompt": " \n"}, "prompt is ' "),
            ({"output_column": ""}, "output_column is ''"),
            ({"metadata_prefix": ""}, "metadata_prefix is ''"),
            ({"system": 5}, "system is a int"),
            ({"max_output_tokens": 0}, "max_output_tokens is 0"),
            ({"max_output_tokens": True}, "max_output_tokens is True"),
            ({"max_output_tokens": 1.5}, "max_output_tokens is 1.5"),
            ({"max_output_tokens": 10**30}, "at most 1000000000"),
            ({"context_window": -1}, "context_window is -1"),
            ({"context_window": 1024}, "no prompt fits; lower max_output_tokens"),
            ({"temperature": -0.1}, "temperature is -0.1: give a number from 0 to 2"),
            ({"temperature": 2.1}, "temperature is 2.1"),
            ({"temperature": float("nan")}, "temperature is nan"),
            ({"temperature": True}, "temperature is True"),
            ({"temperature": "0"}, "temperature is '0'"),
            ({"request_params": []}, "request_params is a list"),
            ({"request_params": {"model": "x", "n": 2}}, "request_params sets model, n"),
            ({"request_params": {"a": {1}}}, "request_params is not JSON"),
            ({"request_params": {"a": float("inf")}}, "request_params is not JSON"),
            ({"request_params": {"user": "\ud800"}}, "request_params is not JSON"),
            ({"output_schema": {"title": "\ud800"}}, "output_schema is not JSON"),
            ({"output_schema": 5}, "output_schema is a int"),
            ({"output_schema": int}, "output_schema is a type"),
            ({"output_schema": {}}, "object with at least one property"),
            ({"output_schema": {"type": "object"}}, "object with at least one property"),
            ({"output_schema": {"type": "object", "properties": {}}}, "object with at least one property"),
            ({"output_schema": {"type": "string", "properties": {"a": {}}}}, "its type is 'string'"),
            (
                {"output_schema": {"type": "object", "properties": {"a": {"x": {1}}}}},
                "output_schema is not JSON",
            ),
            (
                {"output_schema": {"$ref": "#/$defs/nowhere", "$defs": {}}},
                "object with at least one property",
            ),
        ],
    )
    def test_names_value_bound_and_remedy(self, change, message):
        with pytest.raises(LLMInputError, match=message):
            spec(**change)

    def test_is_frozen(self):
        with pytest.raises(dataclasses.FrozenInstanceError):
            spec().model = "n"

    def test_is_an_input_error_that_callers_of_value_errors_catch(self):
        with pytest.raises(ValueError):
            spec(model="")


class TestOutputSchema:
    def test_a_pydantic_model_becomes_its_schema(self):
        assert spec(output_schema=Ticket).output_schema == Ticket.model_json_schema()

    def test_a_recursive_model_has_its_properties_at_the_root(self):
        one = spec(output_schema=Node)
        assert set(one.output_schema["properties"]) == {"name", "children"}
        assert one.output_schema["type"] == "object"
        assert AnswerJudge(one) is not None
        body = RequestShape(one).body(PromptTemplate(one).messages({"a": 1}))
        assert body["response_format"]["json_schema"]["strict"]

    @pytest.mark.parametrize(
        ("title", "name"),
        [
            ("Ticket", "Ticket"),
            ("My ticket!", "My_ticket_"),
            ("", "answer"),
            (None, "answer"),
            ("x" * 99, "x" * 64),
        ],
    )
    def test_its_name_has_the_characters_that_the_api_allows(self, title, name):
        schema = {"type": "object", "properties": {"a": {}}, "title": title}
        assert spec(output_schema=schema).schema_name == name

    def test_without_a_schema_there_is_still_a_name(self):
        assert spec().schema_name == "answer"
