from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import ObjectStoragePath

from airflow_llm_provider.errors import LLMInputError
from airflow_llm_provider.operators import arguments


class TestFlag:
    @pytest.mark.parametrize("value", [True, "True", "true", " TRUE ", "1", "yes", "on"])
    def test_true(self, value: Any) -> None:
        assert arguments.as_flag("dry_run", value) is True

    @pytest.mark.parametrize("value", [False, "False", "false", "0", "no", "off"])
    def test_false(self, value: Any) -> None:
        assert arguments.as_flag("dry_run", value) is False

    @pytest.mark.parametrize("value", ["", "None", None, "maybe", 1, 0, "{}", []])
    def test_A23_anything_else_is_refused_and_never_guessed(self, value: Any) -> None:
        with pytest.raises(LLMInputError, match=r"dry_run is .*: give true or false"):
            arguments.as_flag("dry_run", value)

    def test_an_empty_template_result_is_explained(self) -> None:
        with pytest.raises(LLMInputError, match="rendered to nothing"):
            arguments.as_flag("dry_run", "None")


class TestCount:
    @pytest.mark.parametrize(("value", "expected"), [(1, 1), ("200000", 200_000), (" 200_000 ", 200_000)])
    def test_whole_numbers_and_their_text(self, value: Any, expected: int) -> None:
        assert arguments.as_count("shard_tokens", value) == expected

    @pytest.mark.parametrize(
        "value", [0, -1, True, 1.0, "1.5", "1e3", "", "None", None, "many", "\u0661", "--1"]
    )
    def test_A23_anything_else_is_refused(self, value: Any) -> None:
        with pytest.raises(LLMInputError, match=r"shard_tokens is .*: give a whole number of at least 1"):
            arguments.as_count("shard_tokens", value)

    @pytest.mark.parametrize("value", [None, ""])
    def test_optional_counts_may_be_empty(self, value: Any) -> None:
        assert arguments.as_optional_count("max_shards", value) is None


class TestNames:
    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            (None, None),
            ("", None),
            ("id, body ", ["id", "body"]),
            (["a, b", "c"], ["a, b", "c"]),
            (("a",), ["a"]),
            ("['id', 'body']", ["id", "body"]),
            ('["id"]', ["id"]),
        ],
    )
    def test_A23_lists_and_their_text(self, value: Any, expected: list[str] | None) -> None:
        assert arguments.as_optional_names("columns", value) == expected

    @pytest.mark.parametrize(
        "value", [[], "id,,x", "a, a", ["a", 1], 5, "[1]", "[id]", "[", {"a": 1}, "a, ", " "]
    )
    def test_A23_anything_else_is_refused(self, value: Any) -> None:
        with pytest.raises(LLMInputError, match=r"columns is .*: give a list of different names"):
            arguments.as_optional_names("columns", value)


class TestCondition:
    @pytest.mark.parametrize(
        ("value", "expected"), [(None, None), ("", None), (" lang = 'de' ", "lang = 'de'")]
    )
    def test_is_text_that_can_be_read(self, value: Any, expected: str | None) -> None:
        assert arguments.as_optional_condition("where", value) == expected

    @pytest.mark.parametrize("value", ["None", "lang =", "1", 5, " "])
    def test_A23_anything_else_is_refused(self, value: Any) -> None:
        with pytest.raises(LLMInputError, match="where"):
            arguments.as_optional_condition("where", value)


class TestOptionalFlag:
    @pytest.mark.parametrize(
        ("value", "expected"), [(None, None), ("", None), ("False", False), (True, True)]
    )
    def test_may_be_left_open(self, value: Any, expected: bool | None) -> None:
        assert arguments.as_optional_flag("deduplicate", value) is expected


class TestDollars:
    @pytest.mark.parametrize(
        ("value", "expected"),
        [(None, None), ("", None), (5, 5.0), ("2.5", 2.5), ("$10", 10.0), (".05", 0.05)],
    )
    def test_sums_and_their_text(self, value: Any, expected: float | None) -> None:
        assert arguments.as_optional_dollars("max_cost_usd", value) == expected

    @pytest.mark.parametrize(
        "value", [0, -1, True, "0", "1,50", "1e3", "None", "nan", float("inf"), [], "5 USD"]
    )
    def test_A23_anything_else_is_refused(self, value: Any) -> None:
        with pytest.raises(LLMInputError, match=r"max_cost_usd is .*: give US dollars above 0"):
            arguments.as_optional_dollars("max_cost_usd", value)


class TestWeights:
    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            (None, None),
            (["a", "b"], {"a": 1, "b": 1}),
            (("a",), {"a": 1}),
            ({"a": 3, "b": 1}, {"a": 3, "b": 1}),
            ({"a": "3"}, {"a": 3}),
        ],
    )
    def test_are_read_from_lists_and_mappings(self, value: Any, expected: dict[str, int] | None) -> None:
        assert arguments.as_optional_weights("conn_ids", value) == expected

    @pytest.mark.parametrize("value", [[], {}, "a", 5, ["a", "a"], [" a", "a"], [""], {"a": 0}, {"a": 1.5}])
    def test_anything_else_is_refused(self, value: Any) -> None:
        with pytest.raises(LLMInputError, match="conn_ids"):
            arguments.as_optional_weights("conn_ids", value)


class TestText:
    @pytest.mark.parametrize("value", ["", "  ", "None", None, 5])
    def test_must_say_something(self, value: Any) -> None:
        with pytest.raises(LLMInputError, match="source is"):
            arguments.as_text("source", value)

    def test_optional_text_may_be_empty_as_ui_fields_are(self) -> None:
        assert arguments.as_optional_text("model", "") is None
        assert arguments.as_optional_text("model", None) is None

    def test_optional_text_is_not_the_word_none(self) -> None:
        with pytest.raises(LLMInputError, match="rendered to nothing"):
            arguments.as_optional_text("model", "None")

    def test_locations_may_be_paths(self, tmp_path: Path) -> None:
        assert arguments.as_location("source", tmp_path) == str(tmp_path)
        assert (
            arguments.as_location("source", ObjectStoragePath(f"file://{tmp_path}")) == f"file://{tmp_path}"
        )

    @pytest.mark.parametrize(
        ("value", "expected"), [("\t", "\t"), (r"\t", "\t"), (";", ";"), ("", None), (None, None)]
    )
    def test_delimiters(self, value: Any, expected: str | None) -> None:
        assert arguments.as_delimiter("delimiter", value) == expected

    def test_a_delimiter_is_one_character(self) -> None:
        with pytest.raises(LLMInputError, match="one character"):
            arguments.as_delimiter("delimiter", "||")


class TestNumbers:
    @pytest.mark.parametrize("value", [0, -1, True, float("inf"), float("nan"), "60", None])
    def test_seconds_are_positive_and_finite(self, value: Any) -> None:
        with pytest.raises(LLMInputError, match="timeout is"):
            arguments.as_seconds("timeout", value)

    @pytest.mark.parametrize("value", [-0.1, 5, "5%", True])
    def test_shares_are_between_0_and_1(self, value: Any) -> None:
        with pytest.raises(LLMInputError, match=r"0\.05 for 5 %"):
            arguments.as_optional_share("failure_threshold", value)


class TestDeferred:
    @pytest.mark.parametrize("value", ["{{ params.dry_run }}", "a{% if x %}b{% endif %}"])
    def test_templates_are_known_only_at_run_time(self, value: str) -> None:
        assert arguments.is_deferred(value)

    @pytest.mark.parametrize("value", ["plain", 5, None, Path("x")])
    def test_literals_are_known_now(self, value: Any) -> None:
        assert not arguments.is_deferred(value)
