"""What a completion is worth: an answer, or which kind of failure.

Pure: the same reply always gets the same judgement, so answers can be derived again from the model's recorded words.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any

import jsonschema_rs

from airflow_llm_provider.answers.integers import OutOfRangeError, with_integers
from airflow_llm_provider.answers.parse import MalformedJSONError, parse_answer
from airflow_llm_provider.engine.call import Judgement
from airflow_llm_provider.engine.status import RowStatus
from airflow_llm_provider.errors import LLMInputError
from airflow_llm_provider.prompt import clean_text

if TYPE_CHECKING:
    from airflow_llm_provider.engine.call import Reply
    from airflow_llm_provider.spec import CompletionSpec

#: Finish reasons of servers, in lower case.
_CUT_OFF = frozenset({"length", "max_tokens", "model_length"})
_FILTERED = frozenset({"content_filter", "content_filtered", "safety", "recitation", "prohibited_content"})
#: What local reasoning models put before their answer when the server does not take it away.
_THINKING = re.compile(r"\s*<think>.*?</think>\s*", re.DOTALL)
_UNENDED_THINKING = re.compile(r"\s*<think>")
_MESSAGE_LENGTH = 300


class AnswerJudge:
    """Judges the completions of one spec.

    In this order: a refusal, a filter, an answer cut off, none at all, one that does not match the schema. An answer
    cut off *after* its JSON object was complete is whole all the same. Further properties that a schema allows are
    left out of the answer, since they have no column.

    :param spec: the spec whose output is judged.
    :raises LLMInputError: when its output schema is no valid JSON Schema.
    """

    def __init__(self, spec: CompletionSpec) -> None:
        self._cap = spec.max_output_tokens
        self._shape = None if spec.output_schema is None else _OutputShape(spec.output_schema)

    def __call__(self, reply: Reply) -> Judgement:
        """Judge one completion."""
        declined = _declined(reply)
        if declined is not None:
            return declined
        text = _without_thinking(reply.text or "")
        if (reply.finish_reason or "").lower() in _CUT_OFF:
            return self._judge_cut_off(text)
        if not text.strip():
            message = "the model answered with nothing"
            return Judgement(status=RowStatus.EMPTY, code="empty", message=message, try_again=True)
        if self._shape is None:
            return Judgement(status=RowStatus.SUCCESS, answer=clean_text(text))
        try:
            if _UNENDED_THINKING.match(text):
                raise MalformedJSONError("is a thought without an end")  # noqa: TRY301 -- an object in it is a draft
            return self._shape.judge(parse_answer(text))
        except MalformedJSONError as error:
            message = f"the answer {error}"
            return Judgement(
                status=RowStatus.INVALID_OUTPUT, code="invalid_json", message=message, try_again=True
            )

    def _judge_cut_off(self, text: str) -> Judgement:
        if self._shape is not None:
            with contextlib.suppress(MalformedJSONError):
                judgement = self._shape.judge(parse_answer(text, salvage=False))
                if judgement.status is RowStatus.SUCCESS:
                    return judgement
        return Judgement(
            status=RowStatus.TRUNCATED,
            code="truncated",
            message=f"the answer hit max_output_tokens ({self._cap}), reasoning included: raise it in the CompletionSpec",
        )


class _OutputShape:
    """The schema that answers must match.

    :param schema: JSON Schema of an object.
    """

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema
        try:
            # Masked: messages name rule and place and quote no answer. Nothing is fetched over the network.
            self._validator = jsonschema_rs.validator_for(
                schema, mask="the value", retriever=_refuse_to_fetch
            )
        except ValueError as error:
            said = _cut(str(error).partition("\n")[0])
            raise LLMInputError(f"CompletionSpec.output_schema is no valid JSON Schema: {said}") from error

    def judge(self, value: dict[str, Any]) -> Judgement:
        try:
            fault = next(self._validator.iter_errors(value), None)
        except ValueError:  # nested deeper than the validator goes
            return _wrong("nested_too_deeply", "the answer is nested too deeply")
        if fault is not None:
            rule = str(fault.schema_path[-1]) if fault.schema_path else "false"
            return _wrong(f"schema_{rule}", f"{_place(fault.instance_path)}: {_cut(fault.message)}")
        try:
            return Judgement(status=RowStatus.SUCCESS, answer=with_integers(value, self._schema))
        except OutOfRangeError:
            return _wrong("integer_out_of_range", "an integer of the answer exceeds 64 bits")


def _refuse_to_fetch(_: str) -> Any:
    raise ValueError("references must stay within the schema")


def _declined(reply: Reply) -> Judgement | None:
    finish = (reply.finish_reason or "").lower()
    if reply.refusal or finish == "refusal":
        message = _cut(reply.refusal) or "the model declined"
        return Judgement(status=RowStatus.REFUSED, code="refused", message=message)
    if finish in _FILTERED:
        message = "the provider's filter stopped the answer"
        return Judgement(status=RowStatus.CONTENT_FILTER, code="content_filter", message=message)
    return None


def _wrong(code: str, message: str) -> Judgement:
    """Well-formed but wrong: asking again blindly would only buy the same."""
    return Judgement(status=RowStatus.INVALID_OUTPUT, code=code, message=message)


def _place(path: list[Any]) -> str:
    return "$" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)


def _without_thinking(text: str) -> str:
    found = _THINKING.match(text) if "<think>" in text else None
    return text if found is None else text[found.end() :]


def _cut(text: str | None) -> str | None:
    return None if text is None else clean_text(text)[:_MESSAGE_LENGTH]
