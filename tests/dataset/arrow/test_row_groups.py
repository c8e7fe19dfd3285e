from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_llm_provider.dataset.arrow.row_groups import RowGroupWriter

ROWS = 3000


def written(table, **options):
    file = io.BytesIO()
    with RowGroupWriter(file, table.schema, **options) as writer:
        for batch in table.to_batches():
            writer.write(batch)
    return pq.ParquetFile(io.BytesIO(file.getvalue()))


def with_dictionary(file):
    group = file.metadata.row_group(0)
    columns = (group.column(index) for index in range(group.num_columns))
    return {column.path_in_schema for column in columns if column.has_dictionary_page}


class TestDictionary:
    TABLE = pa.table(
        {
            "label": ["billing", "shipping", None] * (ROWS // 3),
            "text": [f"ticket {n}" for n in range(ROWS)],
            "a.b": ["x"] * ROWS,
            "view": pa.array(["x"] * ROWS, pa.string_view()),
            "nothing": pa.nulls(ROWS),
        }
    )

    def test_is_for_columns_whose_values_repeat(self):
        file = written(self.TABLE)
        assert with_dictionary(file) == {"label", "a.b", "view", "nothing"}
        assert file.read().equals(self.TABLE)

    def test_is_for_those_that_are_named(self):
        assert with_dictionary(written(self.TABLE, dictionary=["text"])) == {"text"}
        assert with_dictionary(written(self.TABLE, dictionary=[])) == set()

    def test_is_as_parquet_has_it_where_a_column_is_nested(self):
        table = pa.table({"tags": [["a", "b"]] * ROWS, "text": [str(n) for n in range(ROWS)]})
        file = written(table)
        assert "tags.list.element" in with_dictionary(file)
        assert file.read().equals(table)


class TestFile:
    @pytest.mark.parametrize("nested", [False, True])
    def test_without_rows_has_its_schema(self, nested):
        kind = pa.list_(pa.string()) if nested else pa.string()
        file = written(pa.schema([("a", kind), ("b", pa.int64())]).empty_table())
        assert file.schema_arrow.names == ["a", "b"]
        assert file.metadata.num_rows == 0

    def test_a_group_has_no_more_rows_than_it_may(self):
        table = pa.table({"n": range(10)})
        file = written(table, rows=4)
        assert [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)] == [4, 4, 2]
        assert file.read().equals(table)
