import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llm_provider.dataset.arrow.content_hash import ContentHash
from airflow_llm_provider.testing.arrow_tables import tables


def digest(table, salt=b""):
    content = ContentHash(table.schema, salt)
    for batch in table.to_batches():
        content.update(batch)
    return content.hexdigest()


class TestContentHash:
    @settings(max_examples=40)
    @given(tables(), st.integers(1, 31), st.integers(0, 5))
    def test_does_not_depend_on_batches_or_buffers(self, table, chunk, offset):
        padded = pa.concat_tables([table.slice(0, offset), table]).combine_chunks()
        moved = padded.slice(min(offset, table.num_rows))
        again = pa.Table.from_batches(moved.to_batches(max_chunksize=chunk), table.schema)
        assert digest(again) == digest(table)

    @settings(max_examples=40)
    @given(tables(), st.data())
    def test_depends_on_every_row_and_its_place(self, table, data):
        if table.num_rows < 2:
            return
        row = data.draw(st.integers(0, table.num_rows - 1))
        without = pa.concat_tables([table.slice(0, row), table.slice(row + 1)])
        assert digest(without) != digest(table)

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            (["a", "bc"], ["ab", "c"]),
            ([None, "a"], ["a", None]),
            (["", None], [None, ""]),
            ([["a"], []], [[], ["a"]]),
            ([["a", "b"]], [["ab"]]),
            ([[None]], [[]]),
            ([{"p": None}], [None]),
            ([0.0], [-0.0]),
            ([True, False], [False, True]),
        ],
    )
    def test_tells_similar_values_apart(self, one, other):
        assert digest(pa.table({"x": one})) != digest(pa.table({"x": other}))

    def test_ignores_what_lies_under_a_null(self):
        clean = pa.array([1, None, 3])
        dirty = pa.Array.from_buffers(
            pa.int64(), 3, [clean.buffers()[0], pa.array([1, 77, 3]).buffers()[1]], null_count=1
        )
        assert digest(pa.table({"x": dirty})) == digest(pa.table({"x": clean}))

    def test_does_not_depend_on_how_texts_are_stored(self):
        texts = pa.array(["a", None, "bb", "a"])
        for kind in (pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())):
            assert digest(pa.table({"x": texts.cast(kind)})) == digest(pa.table({"x": texts}))

    def test_depends_on_the_salt(self):
        table = pa.table({"x": [1]})
        assert digest(table, b"a") != digest(table, b"b")

    def test_is_the_same_in_every_version(self):
        table = pa.table({"x": [1, None], "t": ["a", "b"], "l": [[1], None]})
        assert digest(table, b"salt") == "d38bff5bbb70080b927f6a1124af99f2"
