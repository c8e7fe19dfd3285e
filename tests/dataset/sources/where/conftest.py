"""One table of every kind of column, and what a condition takes of it."""

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from airflow_llm_provider.dataset.sources.where.row_filter import RowFilter

TABLE = pa.table(
    {
        "row": pa.array([0, 1, 2, 3], pa.int64()),
        "n": pa.array([1, 9007199254740993, -5, None], pa.int64()),
        "small": pa.array([-128, 127, 0, None], pa.int8()),
        "u": pa.array([0, 2**64 - 1, 5, None], pa.uint64()),
        "f": pa.array([1.5, float("nan"), -0.0, None], pa.float64()),
        "f32": pa.array([1.5, 0.1, 2.0, None], pa.float32()),
        "money": pa.array([Decimal("1.20"), Decimal("9.99"), Decimal("-3.00"), None], pa.decimal128(5, 2)),
        "text": pa.array(["de", "it's 100%", "a\nb", None]),
        "big": pa.array(["de", "é_", "", None], pa.large_string()),
        "kind": pa.array(["p", "q", "p", None]).dictionary_encode(),
        "urgent": pa.array([True, False, True, None]),
        "day": pa.array([dt.date(2026, 1, 1), dt.date(2026, 2, 1), dt.date(1969, 12, 31), None]),
        "at": pa.array([0, 1_500_000, -1, None], pa.timestamp("us")),
        "zoned": pa.array([0, 1, 2, None], pa.timestamp("ns", "Asia/Tokyo")),
        "time": pa.array([0, 1, 86_399_999_999, None], pa.time64("us")),
        "tags": pa.array([["a"], [], [None], None]),
        "address": pa.array([{"city": "Bonn"}, {"city": None}, {"city": "Köln"}, None]),
        "odd name": pa.array(["x", "y", "z", None]),
    }
)


@pytest.fixture
def schema():
    return TABLE.schema


@pytest.fixture
def taken():
    """Return the numbers of the rows that a condition takes."""

    def taken(where):
        row_filter = RowFilter.of(where, TABLE.schema)
        return [
            row for batch in TABLE.to_batches() for row in row_filter.take(batch).column("row").to_pylist()
        ]

    return taken
