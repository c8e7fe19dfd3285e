from __future__ import annotations

import pytest

from airflow_llm_provider.jobs.amounts import counted, dollars


class TestCounted:
    @pytest.mark.parametrize(("number", "text"), [(0, "0 shards"), (1, "1 shard"), (1024, "1,024 shards")])
    def test_speaks_of_one_and_of_many(self, number: int, text: str) -> None:
        assert counted(number, "shard") == text


class TestDollars:
    @pytest.mark.parametrize(
        ("amount", "text"),
        [
            (0.0, "$0.0000"),
            (0.000123, "$0.000123"),
            (0.00000456789, "$0.00000457"),
            (0.0048, "$0.0048"),
            (0.5, "$0.5000"),
            (1234.5, "$1,234.5000"),
        ],
    )
    def test_small_sums_show_three_digits(self, amount: float, text: str) -> None:
        assert dollars(amount) == text
