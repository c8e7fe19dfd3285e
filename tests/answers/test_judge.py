from __future__ import annotations

import json
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from airflow_llm_provider import CompletionSpec
from airflow_llm_provider.answers import AnswerJudge
from airflow_llm_provider.engine.call import Reply
from airflow_llm_provider.engine.status import RowStatus
from airflow_llm_provider.errors import LLMInputError

SCHEMA = {
    "type": "object",
    "properties": {
        "label": {"type": "string", "enum": ["pos", "neg"]},
        "score": {"type": "integer", "minimum": 0},
        "note": {"type": ["string", "null"]},
    },
    "required": ["label"],
}


def judge(text, schema=SCHEMA, *, cap=64, **reply):
    spec = CompletionSpec(model="m", prompt="p", output_schema=schema, max_output_tokens=cap)
    return AnswerJudge(spec)(Reply(text=text, **{"finish_reason": "stop", **reply}))


class TestPlainText:
    def test_the_text_is_the_answer_as_it_is(self):
        judgement = judge("  hello\n", None)
        assert (judgement.status, judgement.answer, judgement.code) == (RowStatus.SUCCESS, "  hello\n", None)

    def test_a_fence_stays_where_no_json_is_asked_for(self):
        assert judge("```python\nx = 1\n```", None).answer == "```python\nx = 1\n```"

    def test_without_a_finish_reason_it_is_an_answer_too(self):
        assert judge("hi", None, finish_reason=None).status is RowStatus.SUCCESS

    @pytest.mark.parametrize("text", [None, "", " \n\t"])
    def test_nothing_is_empty_and_worth_another_try(self, text):
        judgement = judge(text, None)
        assert (judgement.status, judgement.code, judgement.try_again) == (RowStatus.EMPTY, "empty", True)

    def test_thinking_before_the_answer_is_no_part_of_it(self):
        assert judge("<think>\nhm, {x}\n</think>\n\nParis", None).answer == "Paris"
        assert judge("<think>hm</think>", None).status is RowStatus.EMPTY
        assert (
            judge("The tag <think> opens, </think> closes", None).answer
            == "The tag <think> opens, </think> closes"
        )


class TestDeclined:
    def test_E5_a_refusal_is_refused_with_its_words_and_no_other_try(self):
        judgement = judge(None, refusal="I can't help")
        assert (judgement.status, judgement.message, judgement.try_again) == (
            RowStatus.REFUSED,
            "I can't help",
            False,
        )

    def test_E5_a_refusal_wins_over_the_schema(self):
        assert judge("no json", refusal="no").status is RowStatus.REFUSED
        assert judge("", finish_reason="refusal").status is RowStatus.REFUSED

    @pytest.mark.parametrize("text", ["half an ans", "", None])
    def test_C15_a_filtered_answer_is_content_filter(self, text):
        judgement = judge(text, finish_reason="content_filter")
        assert (judgement.status, judgement.code, judgement.try_again) == (
            RowStatus.CONTENT_FILTER,
            "content_filter",
            False,
        )


class TestCutOff:
    @pytest.mark.parametrize("schema", [None, SCHEMA])
    @pytest.mark.parametrize(
        "text", ["", None, "half an ans", '{"label":"pos', '{"label":"pos"', "<think>hm"]
    )
    @pytest.mark.parametrize("reason", ["length", "MAX_TOKENS"])
    def test_E1_E3_is_truncated_and_names_the_limit_not_the_text(self, schema, text, reason):
        judgement = judge(text, schema, finish_reason=reason, cap=77)
        assert (judgement.status, judgement.code, judgement.try_again) == (
            RowStatus.TRUNCATED,
            "truncated",
            False,
        )
        assert "max_output_tokens (77)" in judgement.message
        assert "pos" not in judgement.message

    def test_an_object_that_was_complete_before_the_cut_is_an_answer(self):
        assert judge('{"label":"pos"}' + "\n" * 50, finish_reason="length").answer == {"label": "pos"}
        assert judge('{"label":"other"}  ', finish_reason="length").status is RowStatus.TRUNCATED


class TestSchema:
    def test_a_valid_object_is_the_answer(self):
        judgement = judge('{"score": 3, "label": "pos", "note": null}')
        assert judgement.status is RowStatus.SUCCESS
        assert list(judgement.answer.items()) == [("label", "pos"), ("score", 3), ("note", None)]

    def test_properties_without_a_column_are_left_out(self):
        assert judge('{"label": "pos", "extra": 1}').answer == {"label": "pos"}

    @pytest.mark.parametrize(
        "text",
        [
            '```json\n{"label":"pos"}\n```',
            '```\n{"label":"pos"}\n```\n',
            '  ```JSON {"label":"pos"}```  ',
            '~~~json\n{"label":"pos"}\n~~~',
            '```json\r\n{"label":"pos"}\r\n```',
        ],
    )
    def test_E6_a_fence_around_the_whole_answer_is_taken_off(self, text):
        assert judge(text).answer == {"label": "pos"}

    @pytest.mark.timeout(60)  # as a regular expression would have it, hours
    @pytest.mark.parametrize("begun", ["```", "```json", '```json\n{"label":', "~~~"])
    @pytest.mark.parametrize("run", [" ", "\t", "\n", "a", "`"])
    @pytest.mark.parametrize("finish_reason", ["stop", "length"])
    def test_a_fence_that_never_closes_takes_no_time(self, begun, run, finish_reason):
        judged = judge(begun + run * 16_000, finish_reason=finish_reason)
        assert judged.status is (
            RowStatus.TRUNCATED if finish_reason == "length" else RowStatus.INVALID_OUTPUT
        )

    def test_E6_backticks_inside_are_content(self):
        schema = {"type": "object", "properties": {"code": {"type": "string"}}}
        assert judge('```json\n{"code":"```x```"}\n```', schema).answer == {"code": "```x```"}

    @pytest.mark.parametrize(
        "text",
        [
            'Sure! Here it is: {"label": "pos"} Anything else?',
            "{'label': 'pos'}",
            '{"label": "pos",}',
            '{label: "pos"}',
            '{"label" "pos"}',
            'Here:\n```json\n{"label":"pos"}\n```\nDone.',
        ],
    )
    def test_what_is_not_quite_json_is_mended(self, text):
        assert judge(text).answer == {"label": "pos"}

    def test_raw_line_feeds_and_python_words_are_mended(self):
        schema = {
            "type": "object",
            "properties": {"a": {"type": "string"}, "b": {}, "c": {"type": "boolean"}},
        }
        assert judge('{"a": "one\ntwo", "b": 1}', schema).answer == {"a": "one\ntwo", "b": 1}
        assert judge("{'a': 'x', 'b': None, 'c': True}", schema).answer == {"a": "x", "b": None, "c": True}

    def test_D4_escaped_lone_surrogates_become_the_replacement_character(self):
        schema = {"type": "object", "properties": {"a": {"type": "string"}}}
        assert judge('{"a": "ok \\ud83d end"}', schema).answer == {"a": "ok \ufffd end"}

    @pytest.mark.parametrize(
        "text",
        [
            "no json at all",
            '{"x":',
            '{"label": "pos"',
            '{"label": }',
            '{"label": "pos", "note": }',
            "{'label': 'pos', 'note': 'it''s'}",
            "[" * 100_000,
            '{"a":' * 50_000,
            '{"a":' * 50_000 + "}" * 50_000,
            '"pos"',
            '[{"label": "pos"}]',
            "null",
            '{"label": "pos"} {"label": "neg"}',
            "{" + "x" * 1_000_000 + "}",
        ],
    )
    def test_E9_E11_malformed_is_worth_another_try_and_nothing_is_made_up(self, text):
        judgement = judge(text)
        assert (judgement.status, judgement.code, judgement.try_again) == (
            RowStatus.INVALID_OUTPUT,
            "invalid_json",
            True,
        )

    @pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
    def test_numbers_that_are_none_are_invalid(self, number):
        schema = {"type": "object", "properties": {"n": {"type": "number"}}}
        assert judge(f'{{"n": {number}}}', schema).status is RowStatus.INVALID_OUTPUT

    @pytest.mark.parametrize(
        ("text", "code", "message"),
        [
            ('{"label":"other"}', "schema_enum", '$.label: the value is not one of "pos" or "neg"'),
            (
                '{"label":"pos","score":-1}',
                "schema_minimum",
                "$.score: the value is less than the minimum of 0",
            ),
            ('{"label":"pos","score":"3"}', "schema_type", '$.score: the value is not of type "integer"'),
            ('{"label":"pos","score":1.5}', "schema_type", '$.score: the value is not of type "integer"'),
            ("{}", "schema_required", '$: "label" is a required property'),
        ],
    )
    def test_E9_well_formed_but_wrong_is_not_asked_again_blindly(self, text, code, message):
        judgement = judge(text)
        assert (judgement.status, judgement.code, judgement.message) == (
            RowStatus.INVALID_OUTPUT,
            code,
            message,
        )
        assert not judgement.try_again

    def test_messages_quote_no_answer(self):
        assert "4711" not in judge('{"label":"patient 4711"}').message

    def test_deep_nesting_in_a_property_is_judged_in_time(self):
        deep = "[" * 900 + "]" * 900
        assert judge('{"label":"pos","extra":' + deep + "}").status in (
            RowStatus.SUCCESS,
            RowStatus.INVALID_OUTPUT,
        )

    def test_a_draft_in_thinking_that_never_ends_is_no_answer(self):
        judgement = judge('<think>perhaps {"label":"neg"}')
        assert (judgement.status, judgement.code) == (RowStatus.INVALID_OUTPUT, "invalid_json")
        assert judgement.try_again

    def test_thinking_before_the_object_is_no_part_of_it(self):
        assert judge('<think>{"label":"neg"}? no</think>{"label":"pos"}').answer == {"label": "pos"}


class TestIntegers:
    @pytest.mark.parametrize(
        ("text", "value"), [("3.0", 3), ("1e3", 1000), ("-0.0", 0), ("9007199254740993", 9007199254740993)]
    )
    def test_whole_numbers_become_integers(self, text, value):
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
        answer = judge(f'{{"n": {text}}}', schema).answer["n"]
        assert (answer, type(answer)) == (value, int)

    def test_numbers_stay_as_they_are(self):
        schema = {"type": "object", "properties": {"n": {"type": "number"}}}
        assert judge('{"n": 3.0}', schema).answer == {"n": 3.0}

    @pytest.mark.parametrize("text", ["9223372036854775808", "1e30", str(2**80)])
    def test_beyond_64_bits_is_invalid(self, text):
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
        judgement = judge(f'{{"n": {text}}}', schema)
        assert (judgement.status, judgement.code) == (RowStatus.INVALID_OUTPUT, "integer_out_of_range")

    def test_inside_lists_objects_references_and_alternatives(self):
        class Part(BaseModel):
            count: int

        class Whole(BaseModel):
            parts: list[Part]
            best: Part | None = Field(default=None, description="x")
            ids: list[int | None]

        text = '{"parts": [{"count": 1.0}], "best": {"count": 2.0}, "ids": [3.0, null]}'
        assert (
            json.dumps(judge(text, Whole).answer)
            == '{"parts": [{"count": 1}], "best": {"count": 2}, "ids": [3, null]}'
        )

    def test_references_in_a_circle_end(self):
        schema = {
            "type": "object",
            "properties": {"a": {"anyOf": [{"$ref": "#/properties/a"}, {"type": "integer"}]}},
        }
        assert judge('{"a": 1.0}', schema).answer["a"] in (1, 1.0)


class TestConstruction:
    @pytest.mark.parametrize(
        "prop",
        [
            {"type": "string", "pattern": "("},
            {"type": "nonsense"},
            {"$ref": "http://127.0.0.1:9/x"},
            {"$ref": "#/nowhere"},
        ],
    )
    def test_an_invalid_schema_is_an_input_error(self, prop):
        with pytest.raises(LLMInputError, match="output_schema is no valid JSON Schema"):
            judge("{}", {"type": "object", "properties": {"a": prop}})


class Ticket(BaseModel):
    kind: Literal["bug", "wish"]
    urgency: int = Field(ge=0, le=5)
    tags: list[str]
    note: str | None


class TestProperties:
    spec = CompletionSpec(model="m", prompt="p", output_schema=Ticket)
    judge = staticmethod(AnswerJudge(spec))

    @given(
        st.builds(
            Ticket,
            kind=st.sampled_from(["bug", "wish"]),
            urgency=st.integers(0, 5),
            tags=st.lists(st.text()),
            note=st.none() | st.text(),
        ),
        st.sampled_from(["{}", "```json\n{}\n```", "Here you go:\n{}\nBye", "\n {} \n"]),
    )
    def test_whatever_is_valid_comes_out_as_it_went_in(self, ticket, frame):
        text = frame.replace("{}", json.dumps(ticket.model_dump()))
        assert self.judge(Reply(text=text, finish_reason="stop")).answer == ticket.model_dump()

    @given(
        st.text() | st.none(),
        st.text() | st.none(),
        st.sampled_from(["stop", "length", "content_filter", None, "x"]),
    )
    def test_any_reply_is_judged(self, text, refusal, finish):
        judgement = self.judge(Reply(text=text, refusal=refusal, finish_reason=finish))
        assert (judgement.answer is not None) == (judgement.status is RowStatus.SUCCESS)
        assert (judgement.code is None) == (judgement.status is RowStatus.SUCCESS)

    @given(st.text(alphabet="{}[]\"':,ab1 \\\n", max_size=60))
    def test_any_near_json_is_judged(self, text):
        self.judge(Reply(text=text, finish_reason="stop"))
