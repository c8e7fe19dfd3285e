from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_llm_provider.clients.completion import read_completion
from airflow_llm_provider.clients.redact import Redactor
from airflow_llm_provider.engine.call import CallError, FailureKind, Reply
from airflow_llm_provider.engine.status import RowStatus
from airflow_llm_provider.engine.usage import Usage


def read(body, headers=None) -> Reply:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return read_completion(raw, headers or {}, now=0.0, redact=Redactor("s3cret"))


def completion(message=None, *, finish_reason="stop", **more):
    message = {"role": "assistant", "content": "hi"} if message is None else message
    return {
        "id": "c1",
        "model": "m",
        "choices": [{"message": message, "finish_reason": finish_reason}],
        **more,
    }


KEYS = [
    "choices",
    "message",
    "content",
    "text",
    "refusal",
    "finish_reason",
    "usage",
    "model",
    "id",
    "error",
    "code",
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda leaf: st.lists(leaf, max_size=3) | st.dictionaries(st.sampled_from(KEYS), leaf, max_size=6),
    max_leaves=20,
)


class TestReadCompletion:
    def test_reads_text_model_usage_and_ids(self):
        usage = {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
        assert read(completion(usage=usage), {"x-request-id": "req_1"}) == Reply(
            text="hi",
            finish_reason="stop",
            usage=Usage(prompt_tokens=9, completion_tokens=3, cached_tokens=4),
            model="m",
            request_id="req_1",
        )

    def test_without_a_header_the_completions_own_id_serves(self):
        assert read(completion()).request_id == "c1"

    def test_E5_refusals_are_kept_apart_from_the_text(self):
        reply = read(completion({"content": None, "refusal": "I can't help"}))
        assert (reply.text, reply.refusal) == (None, "I can't help")

    def test_parts_are_joined(self):
        parts = [{"type": "text", "text": "a"}, {"type": "reasoning"}, {"type": "text", "text": "b"}]
        assert read(completion({"content": parts})).text == "ab"
        reply = read(completion({"content": [{"type": "refusal", "refusal": "no"}]}))
        assert (reply.text, reply.refusal) == (None, "no")

    def test_E1_reasoning_is_no_answer(self):
        message = {"content": "", "reasoning_content": "let me think", "reasoning": "hm"}
        reply = read(completion(message, finish_reason="length"))
        assert (reply.text, reply.finish_reason) == ("", "length")

    def test_a_parsed_answer_becomes_text_again(self):
        assert read(completion({"content": {"label": "é"}})).text == '{"label": "é"}'

    def test_old_completions_have_the_text_in_the_choice(self):
        assert read({"choices": [{"text": "hi", "finish_reason": "stop"}]}).text == "hi"

    def test_D4_lone_surrogates_in_the_answer_become_the_replacement_character(self):
        raw = json.dumps(completion()).replace('"hi"', '"ok \\ud83d end"').encode()
        assert read(raw).text == "ok \ufffd end"

    def test_nan_elsewhere_in_the_body_is_no_harm(self):
        raw = json.dumps(completion(extra=1)).replace('"extra": 1', '"extra": NaN').encode()
        assert read(raw).text == "hi"

    @pytest.mark.parametrize(
        ("usage", "expected"),
        [
            (None, None),
            ({}, None),
            ([], None),
            ({"prompt_tokens": None, "completion_tokens": None}, None),
            ({"prompt_tokens": 5}, Usage(prompt_tokens=5)),
            ({"prompt_tokens": 5.0, "completion_tokens": 2}, Usage(prompt_tokens=5, completion_tokens=2)),
            ({"prompt_tokens": -5, "completion_tokens": True}, None),
            ({"prompt_tokens": 10**30, "completion_tokens": 2}, Usage(completion_tokens=2)),
            ({"prompt_tokens": "5", "completion_tokens": 2}, Usage(completion_tokens=2)),
            (
                {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 99}},
                Usage(prompt_tokens=5, completion_tokens=2, cached_tokens=5),
            ),
            (
                {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": None},
                Usage(prompt_tokens=5, completion_tokens=2),
            ),
            (
                {"prompt_tokens": 5, "completion_tokens": 2, "prompt_cache_hit_tokens": 3},
                Usage(prompt_tokens=5, completion_tokens=2, cached_tokens=3),
            ),
        ],
    )
    def test_odd_usage(self, usage, expected):
        assert read(completion(usage=usage)).usage == expected


class TestNoCompletion:
    @pytest.mark.parametrize(
        ("body", "code"),
        [
            (b"<html><body>Login</body></html>", "not_json"),
            (b"", "not_json"),
            (json.dumps(completion()).encode()[:40], "not_json"),
            (b"[" * 100_000, "not_json"),
            (b"\xff\xfe\x00", "not_json"),
            ({"choices": []}, "no_choices"),
            ({"choices": None}, "no_choices"),
            ({"choices": {}}, "no_choices"),
            ({"choices": [None]}, "no_choices"),
            ({}, "no_choices"),
            ([], "no_choices"),
            (None, "no_choices"),
            ("text", "no_choices"),
            ({"choices": [{"message": None}]}, "no_message"),
            ({"choices": [{"message": "hi"}]}, "no_message"),
            ({"choices": [{"message": {"content": 5}}]}, "bad_content"),
            ({"error": {"message": "patient 4711 caused an internal error"}}, "error_in_200"),
            ({"error": "patient 4711"}, "error_in_200"),
            ({"choices": [{"error": {"message": "upstream"}, "finish_reason": "error"}]}, "error_in_200"),
        ],
    )
    def test_C14_is_a_retryable_bad_response(self, body, code):
        with pytest.raises(CallError) as caught:
            read(body, {"x-request-id": "req_1"})
        assert (caught.value.kind, caught.value.code) == (FailureKind.BAD_RESPONSE, code)
        assert caught.value.request_id == "req_1"
        assert "4711" not in str(caught.value)

    @pytest.mark.parametrize(
        ("error", "kind"),
        [
            ({"code": 429, "message": "upstream is busy"}, FailureKind.RATE_LIMITED),
            ({"code": 502, "message": "upstream is down"}, FailureKind.OVERLOADED),
            ({"code": "insufficient_quota"}, FailureKind.QUOTA),
            ({"code": 401, "message": "bad key s3cret"}, FailureKind.AUTHENTICATION),
            ({"code": "context_length_exceeded"}, FailureKind.ROW),
            ({"code": "something_new"}, FailureKind.BAD_RESPONSE),
        ],
    )
    def test_C14_an_error_that_says_what_it_is_counts_as_that(self, error, kind):
        for body in ({"error": error}, {"choices": [{"error": error}]}):
            with pytest.raises(CallError) as caught:
                read(body)
            assert caught.value.kind is kind
            assert "s3cret" not in str(caught.value)

    def test_C15_a_filter_in_a_200_ends_the_row(self):
        with pytest.raises(CallError) as caught:
            read({"error": {"code": "content_filter"}})
        assert caught.value.row_status is RowStatus.CONTENT_FILTER

    @given(JSON)
    @example({"choices": [{"message": {"content": "\ud800"}}]})
    def test_C14_any_json_is_a_reply_or_a_call_error(self, body):
        with contextlib.suppress(CallError):
            reply = read(body)
            assert reply.text is None or isinstance(reply.text, str)
            (reply.text or "").encode()

    @given(st.binary(max_size=200))
    def test_C14_any_bytes_are_a_call_error(self, raw):
        with pytest.raises(CallError):
            read(raw)
