from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llm_provider import CompletionSpec
from airflow_llm_provider.prompt import RequestShape, fingerprint, request_body

MESSAGES = [{"role": "system", "content": "Sort."}, {"role": "user", "content": "Hi"}]
SCHEMA = {"type": "object", "title": "My Ticket!", "properties": {"label": {"type": "string"}}}


def spec(**changes) -> CompletionSpec:
    return CompletionSpec(**{"model": "gpt-4o-mini", "prompt": "{{ a }}", **changes})


class TestRequestBody:
    def test_holds_what_the_spec_says_and_nothing_else(self):
        assert request_body(spec(max_output_tokens=7), MESSAGES) == {
            "model": "gpt-4o-mini",
            "messages": MESSAGES,
            "max_tokens": 7,
        }

    def test_temperature_schema_and_further_parameters(self):
        body = request_body(spec(temperature=0, output_schema=SCHEMA, request_params={"seed": 7}), MESSAGES)
        assert body["temperature"] == 0
        assert body["seed"] == 7
        assert body["response_format"] == {
            "type": "json_schema",
            "json_schema": {
                "name": "My_Ticket_",
                "strict": True,
                "schema": {**SCHEMA, "required": ["label"], "additionalProperties": False},
            },
        }

    @pytest.mark.parametrize(
        ("model", "name"),
        [
            ("gpt-4o-mini", "max_tokens"),
            ("gpt-4.1", "max_tokens"),
            ("gpt-3.5-turbo", "max_tokens"),
            ("gpt-oss-120b", "max_tokens"),
            ("olmo-2", "max_tokens"),
            ("llama3.1:8b", "max_tokens"),
            ("my-o3-tune", "max_tokens"),
            ("o1", "max_completion_tokens"),
            ("o3-mini", "max_completion_tokens"),
            ("o4-mini-2025-04-16", "max_completion_tokens"),
            ("gpt-5", "max_completion_tokens"),
            ("gpt-5.1-mini", "max_completion_tokens"),
            ("gpt-10", "max_completion_tokens"),
            ("openai/gpt-5-nano", "max_completion_tokens"),
        ],
    )
    def test_C7_the_output_cap_is_always_sent_under_the_name_the_model_knows(self, model, name):
        body = request_body(spec(model=model, max_output_tokens=9), MESSAGES)
        assert {key: value for key, value in body.items() if key.startswith("max")} == {name: 9}


class TestFingerprint:
    def test_is_sixteen_bytes_and_stable_between_processes(self):
        assert fingerprint(request_body(spec(), MESSAGES)).hex() == "e5239018cccd70e92309924e69950d0d"

    @pytest.mark.parametrize(
        "change",
        [
            {"model": "gpt-4o"},
            {"temperature": 0},
            {"output_schema": SCHEMA},
            {"max_output_tokens": 5},
            {"request_params": {"seed": 1}},
        ],
    )
    def test_I2_whatever_shapes_the_request_changes_it(self, change):
        assert fingerprint(request_body(spec(**change), MESSAGES)) != fingerprint(
            request_body(spec(), MESSAGES)
        )

    def test_I2_what_does_not_reach_the_endpoint_does_not(self):
        other = spec(output_column="x", metadata_prefix="m_", context_window=99_999, encoding="cl100k_base")
        assert fingerprint(request_body(other, MESSAGES)) == fingerprint(request_body(spec(), MESSAGES))

    def test_I2_spelling_does_not_count(self):
        body = request_body(spec(temperature=0, output_schema=SCHEMA), MESSAGES)
        reordered = json.loads(json.dumps(body, sort_keys=True))
        assert fingerprint(reordered) == fingerprint(body)
        assert fingerprint(request_body(spec(temperature=0.0), MESSAGES)) == fingerprint(
            request_body(spec(temperature=0), MESSAGES)
        )

    def test_the_name_of_the_output_cap_does_not_count(self):
        body = request_body(spec(), MESSAGES)
        renamed = {
            ("max_completion_tokens" if key == "max_tokens" else key): value for key, value in body.items()
        }
        assert fingerprint(renamed) == fingerprint(body)

    def test_bounds_beyond_64_bits_are_fine(self):
        schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 2**80}}}
        assert len(fingerprint(request_body(spec(output_schema=schema), MESSAGES))) == 16

    @given(st.lists(st.fixed_dictionaries({"role": st.text(), "content": st.text()}), max_size=3))
    def test_the_shape_agrees_with_the_body(self, messages):
        shape = RequestShape(
            spec(model="gpt-5", temperature=1, output_schema=SCHEMA, request_params={"a": {"messages": []}})
        )
        assert shape.fingerprint(messages) == fingerprint(shape.body(messages))

    @given(
        st.lists(st.text(), min_size=2, max_size=2, unique=True),
    )
    def test_different_texts_differ(self, texts):
        one, two = (fingerprint(request_body(spec(), [{"role": "user", "content": text}])) for text in texts)
        assert one != two
