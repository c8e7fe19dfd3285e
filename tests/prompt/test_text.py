from __future__ import annotations

import datetime as dt
import json
import uuid
from decimal import Decimal
from enum import Enum

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llm_provider.prompt import RowRenderError, clean_text, is_blank, print_value


class Colour(Enum):
    RED = "red"


CASES = [
    (None, ""),
    (float("nan"), ""),
    (np.float64("nan"), ""),
    (Decimal("NaN"), ""),
    (pd.NA, ""),
    (pd.NaT, ""),
    ("", ""),
    ("é", "é"),
    (np.str_("x"), "x"),
    (True, "true"),
    (np.bool_(False), "false"),
    (0, "0"),
    (9007199254740993, "9007199254740993"),
    (2**100, "1267650600228229401496703205376"),
    (np.int64(-5), "-5"),
    (1.0, "1.0"),
    (0.1, "0.1"),
    (np.float32(1.5), "1.5"),
    (float("inf"), "inf"),
    (Decimal("1.20"), "1.20"),
    (Decimal("1E+5"), "100000"),
    (dt.date(2024, 2, 29), "2024-02-29"),
    (dt.time(1, 2, 3), "01:02:03"),
    (dt.datetime(2024, 2, 29, 1, 2, 3), "2024-02-29T01:02:03"),  # noqa: DTZ001
    (dt.datetime(2024, 2, 29, 1, 2, 3, tzinfo=dt.UTC), "2024-02-29T01:02:03+00:00"),
    (pd.Timestamp("2024-02-29T01:02:03.123456789"), "2024-02-29T01:02:03.123456789"),
    (np.datetime64("2024-02-29"), "2024-02-29"),
    (dt.timedelta(days=1, hours=2, milliseconds=1500), "P1DT2H0M1.5S"),
    (-dt.timedelta(minutes=5), "-P0DT0H5M0S"),
    (pd.Timedelta("1 days 00:00:00.000000001"), "P1DT0H0M0.000000001S"),
    (uuid.UUID(int=0), "00000000-0000-0000-0000-000000000000"),
    (Colour.RED, "red"),
    ([], "[]"),
    ([1, "é", None, True], '[1,"é",null,true]'),
    ((1, [2]), "[1,[2]]"),
    ({"b": 1, "a": {"c": []}}, '{"b":1,"a":{"c":[]}}'),
    ({1: 2}, '{"1":2}'),
    ([("k", "v")], '[["k","v"]]'),
    ([2**70, -(2**70)], "[1180591620717411303424,-1180591620717411303424]"),
    ([float("nan"), pd.NaT], "[null,null]"),
    ([Decimal("1.20")], "[1.20]"),
    ([dt.datetime(2024, 1, 1)], '["2024-01-01T00:00:00"]'),  # noqa: DTZ001
    ([dt.timedelta(seconds=1)], '["P0DT0H0M1S"]'),
    (["\ud800"], '["\ufffd"]'),
    ({"\ud800": 2**70}, '{"\ufffd":1180591620717411303424}'),
    (np.array([1, 2]), "[1,2]"),
    (np.array(["a", None], dtype=object), '["a",null]'),
    ({"a": np.array([1.5])}, '{"a":[1.5]}'),
]


class TestPrintValue:
    @pytest.mark.parametrize(("value", "text"), CASES, ids=lambda value: repr(value)[:40])
    def test_prints(self, value, text):
        assert print_value(value) == text

    @pytest.mark.parametrize(
        "value", [b"s3cret", bytearray(b"s3cret"), [b"s3cret"], {"a": {"s3cret"}}, object()]
    )
    def test_what_has_no_text_is_an_error_without_the_value(self, value):
        with pytest.raises(RowRenderError) as caught:
            print_value(value)
        assert "s3cret" not in str(caught.value)

    @given(st.integers())
    def test_integers_keep_every_digit(self, number):
        assert int(print_value(number)) == number
        assert json.loads(print_value([number])) == [number]

    @given(st.floats(allow_nan=False))
    def test_floats_read_back(self, number):
        assert float(print_value(number)) == number

    @given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**20), max_value=10**20))
    def test_decimals_read_back(self, number):
        assert Decimal(print_value(number)) == number

    @given(
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers()
            | st.floats(allow_nan=False, allow_infinity=False)
            | st.text(),
            lambda leaf: st.lists(leaf) | st.dictionaries(st.text(), leaf),
        ).filter(lambda value: isinstance(value, (list, dict)))
    )
    def test_json_reads_back(self, value):
        assert json.loads(print_value(value)) == value


class TestCleanText:
    @pytest.mark.parametrize(
        ("dirty", "clean"),
        [
            ("plain", "plain"),
            ("ok \ud83d end", "ok \ufffd end"),
            ("\udfff\ud800", "\ufffd\ufffd"),
            ("😀", "😀"),
        ],
    )
    def test_D4_replaces_lone_surrogates_only(self, dirty, clean):
        assert clean_text(dirty) == clean

    @given(st.text(alphabet=st.characters(exclude_categories=[])))
    def test_D4_is_idempotent_and_keeps_the_length(self, text):
        assert clean_text(clean_text(text)) == clean_text(text)
        assert len(clean_text(text)) == len(text)
        clean_text(text).encode()


class TestIsBlank:
    @pytest.mark.parametrize(
        "value", [None, "", " \n", float("nan"), pd.NA, pd.NaT, [], {}, (), Decimal("nan")]
    )
    def test_D6_blank(self, value):
        assert is_blank(value)

    @pytest.mark.parametrize("value", [0, False, "a", [None], {"a": None}, 0.0, np.array([])])
    def test_not_blank(self, value):
        assert not is_blank(value)
