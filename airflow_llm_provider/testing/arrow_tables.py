"""Hypothesis strategies for Arrow tables: any type that a Parquet file can hold, any value of it."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from hypothesis import strategies as st

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy

_SURROGATES: list[Literal["Cs"]] = ["Cs"]
_TEXT = st.text(st.characters(exclude_categories=_SURROGATES), max_size=12)
_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 -- Arrow takes the zone from the type
_MICROSECONDS = st.integers(-(2**55), 2**55)


def _integers(bits: int, *, signed: bool) -> SearchStrategy[int]:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return st.integers(low, high)


_LEAVES: list[tuple[pa.DataType, SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), _integers(8, signed=True)),
    (pa.int32(), _integers(32, signed=True)),
    (pa.int64(), _integers(64, signed=True)),
    (pa.uint16(), _integers(16, signed=False)),
    (pa.uint64(), _integers(64, signed=False)),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    (pa.string(), _TEXT),
    (pa.large_string(), _TEXT),
    (pa.binary(), st.binary(max_size=8)),
    (pa.binary(4), st.binary(min_size=4, max_size=4)),
    (pa.decimal128(12, 4), st.decimals("-9999999", "9999999", places=4)),
    (pa.decimal128(10, 2), st.sampled_from([Decimal("1.20"), Decimal("-0.01"), Decimal("99999999.99")])),
    (pa.date32(), st.dates()),
    (pa.timestamp("ms"), st.integers(-(2**45), 2**45)),
    (pa.timestamp("us"), _MICROSECONDS),
    (pa.timestamp("ns"), st.integers(-(2**62), 2**62)),
    (pa.timestamp("us", "UTC"), _MICROSECONDS),
    (pa.timestamp("us", "Asia/Tokyo"), _MICROSECONDS),
    (pa.time64("us"), st.integers(0, 86_399_999_999)),
    (pa.duration("us"), _MICROSECONDS),
    (pa.dictionary(pa.int32(), pa.string()), _TEXT),
    (pa.dictionary(pa.int8(), pa.string()), st.sampled_from(["a", "b", "ü"])),
]


def columns(
    depth: int = 2, *, nested_dictionaries: bool = False
) -> SearchStrategy[tuple[pa.DataType, SearchStrategy[Any]]]:
    """Choose a type together with the strategy of its values, nulls among them."""
    leaves = st.sampled_from(_LEAVES).map(lambda pair: (pair[0], st.none() | pair[1]))
    if not depth:
        return leaves
    inner = columns(depth - 1, nested_dictionaries=nested_dictionaries)
    if not nested_dictionaries:
        inner = inner.filter(lambda pair: not pa.types.is_dictionary(pair[0]))
    lists = inner.map(lambda pair: (pa.list_(pair[0]), st.none() | st.lists(pair[1], max_size=3)))
    structs = st.tuples(inner, inner).map(
        lambda pairs: (
            pa.struct([("p", pairs[0][0]), ("q", pairs[1][0])]),
            st.none() | st.fixed_dictionaries({"p": pairs[0][1], "q": pairs[1][1]}),
        )
    )
    return st.one_of(leaves, leaves, leaves, lists, structs)


@st.composite
def tables(
    draw: DrawFn, *, max_rows: int = 30, max_columns: int = 4, nested_dictionaries: bool = False
) -> pa.Table:
    """Draw a table of any schema that Parquet can hold, in chunks of any size.

    :param nested_dictionaries: also dictionaries inside lists and structs, which Arrow reads from Parquet only while
        they lie in one row group.
    """
    rows = draw(st.integers(0, max_rows))
    names = draw(st.lists(_NAMES, min_size=1, max_size=max_columns, unique_by=str.casefold))
    arrays = []
    for _ in names:
        kind, values = draw(columns(nested_dictionaries=nested_dictionaries))
        arrays.append(pa.array(draw(st.lists(values, min_size=rows, max_size=rows)), kind))
    chunk = draw(st.integers(1, max_rows + 1))
    batches = pa.table(arrays, names=names).to_batches(max_chunksize=chunk)
    return pa.Table.from_batches(
        batches, pa.schema([(n, a.type) for n, a in zip(names, arrays, strict=True)])
    )


_NAMES = st.text(st.sampled_from("abcxyz .é_-1"), min_size=1, max_size=6).filter(
    lambda name: not name.startswith(("_llm_", "llm_")) and name.casefold() != "answer"
)
