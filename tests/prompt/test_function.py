from __future__ import annotations

import functools
import itertools
from typing import Any

import pytest

from airflow_llm_provider.errors import LLMInputError
from airflow_llm_provider.prompt import PromptFunction, PromptTemplate, RowRenderError, prompt_of
from airflow_llm_provider.spec import CompletionSpec

SECRET = "confidential-77"


def function(call: Any, **fields: Any) -> PromptFunction:
    found = prompt_of(CompletionSpec(model="m", prompt=call, **fields))
    assert isinstance(found, PromptFunction)
    return found


class TestMessages:
    def test_a_text_is_the_users_message(self) -> None:
        assert function(lambda row: f"Ticket: {row['text']}").messages({"text": "hello"}) == [
            {"role": "user", "content": "Ticket: hello"}
        ]

    def test_a_list_is_a_conversation(self) -> None:
        turns = [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": "c"},
        ]
        assert function(lambda _: turns).messages({}) == turns

    @pytest.mark.parametrize("nothing", [None, "", " \n"])
    def test_D6_nothing_returned_is_nothing_to_ask(self, nothing: Any) -> None:
        assert function(lambda _: nothing).messages({}) is None

    def test_D4_half_a_surrogate_pair_is_replaced(self) -> None:
        assert function(lambda _: "ok \ud83d end").messages({}) == [{"role": "user", "content": "ok � end"}]

    @pytest.mark.parametrize(
        ("returned", "reason"),
        [
            (7, "returned a int: return the user's message as a text"),
            ([], "returned an empty list"),
            (["text"], "item 0 is a str"),
            ([{"role": "user", "content": "a", "name": "b"}], "item 0 is a dict"),
            (
                [{"role": "robot", "content": "a"}],
                "message 0 whose role is none of system, developer, user, assistant",
            ),
            ([{"role": "user", "content": " "}], "content is an empty str"),
            ([{"role": "user", "content": [SECRET]}], "content is a list"),
        ],
    )
    def test_anything_else_is_an_error_of_the_row_that_quotes_nothing(
        self, returned: Any, reason: str
    ) -> None:
        def ask(_: Any) -> Any:
            return returned

        with pytest.raises(RowRenderError) as refused:
            function(ask).messages({"text": SECRET})
        assert f"ask() returned {reason}" in str(refused.value) or reason in str(refused.value)
        assert SECRET not in str(refused.value)

    def test_E12_an_exception_is_an_error_of_the_row_that_names_the_line(self) -> None:
        def ask(row: Any) -> str:
            raise ValueError(row["text"])

        with pytest.raises(RowRenderError) as refused:
            function(ask).messages({"text": SECRET})
        line = ask.__code__.co_firstlineno + 1
        assert str(refused.value) == f"ask() raised ValueError in line {line} of the file"
        assert refused.value.__cause__ is None


class TestSpec:
    def test_a_function_is_frozen_as_no_prompt(self) -> None:
        spec = CompletionSpec(model="m", prompt=lambda _: "a", system="s")
        frozen = CompletionSpec.from_json(spec.to_json())
        assert frozen.prompt is None
        assert frozen.fingerprint == spec.fingerprint

    def test_a_spec_without_a_prompt_asks_nothing(self) -> None:
        with pytest.raises(LLMInputError, match="prompt is not given"):
            prompt_of(CompletionSpec(model="m"))

    def test_a_text_stays_a_template(self) -> None:
        assert isinstance(prompt_of(CompletionSpec(model="m", prompt="{{ a }}")), PromptTemplate)


class TestChecks:
    @pytest.mark.parametrize(
        ("call", "reason"),
        [
            (lambda: "a", "cannot be called with one row"),
            (lambda row, other: "a", "missing a required argument: 'other'"),
            (lambda *, row: "a", "cannot be called with one row"),
            (dict, "is a class"),
        ],
    )
    def test_what_takes_no_row_is_refused_at_once(self, call: Any, reason: str) -> None:
        with pytest.raises(LLMInputError, match=reason):
            function(call)

    def test_coroutines_and_generators_are_refused(self) -> None:
        async def later(row: Any) -> str:
            return "a"

        def several(row: Any) -> Any:
            yield "a"

        for call in (later, several):
            with pytest.raises(LLMInputError, match="coroutine or a generator"):
                function(call)

    def test_what_else_it_needs_may_be_bound(self) -> None:
        def ask(row: Any, *, words: list[str]) -> str:
            return " ".join([*words, row["text"]])

        assert function(functools.partial(ask, words=["a"])).messages({"text": "b"}) == [
            {"role": "user", "content": "a b"}
        ]

    def test_B5_a_function_that_changes_its_mind_is_refused(self) -> None:
        ticking = itertools.count()
        with pytest.raises(LLMInputError, match="different messages for the same row"):
            function(lambda _: f"{next(ticking)}").check_steady({})

    def test_a_function_that_changes_its_row_is_steady_all_the_same(self) -> None:
        function(lambda row: row.pop("text")).check_steady({"text": "a"})
