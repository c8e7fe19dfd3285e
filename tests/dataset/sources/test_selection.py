import json

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from airflow_llm_provider.dataset.sources.selection import Selection
from airflow_llm_provider.dataset.sources.source import open_source
from airflow_llm_provider.errors import LLMInputError

ROWS = [
    {"id": 1, "lang": "de", "text": "a", "score": 1},
    {"id": 2, "lang": "en", "text": "b", "score": 5},
    {"id": 3, "lang": None, "text": "c", "score": 7},
    {"id": 4, "lang": "de", "text": "d", "score": 9},
]
WRITERS = {
    "parquet": lambda path: pq.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=2),
    "csv": lambda path: path.write_text(
        "id,lang,text,score\n" + "".join(",".join(str(v or "") for v in row.values()) + "\n" for row in ROWS)
    ),
    "jsonl": lambda path: path.write_text("".join(json.dumps(row) + "\n" for row in ROWS)),
}


@pytest.fixture(params=WRITERS)
def source(request, tmp_path):
    WRITERS[request.param](tmp_path / f"a.{request.param}")
    return open_source(str(tmp_path))


@pytest.fixture
def parquet(tmp_path):
    WRITERS["parquet"](tmp_path / "a.parquet")
    return open_source(str(tmp_path))


@pytest.fixture
def days(tmp_path):
    """Three folders of a day each; the file of the last is broken behind its schema."""
    for day in ("2026-01-01", "2026-01-02", "__HIVE_DEFAULT_PARTITION__"):
        folder = tmp_path / f"ds={day}"
        folder.mkdir()
        WRITERS["parquet"](folder / "a.parquet")
    return open_source(str(tmp_path))


def rows_of(selection, batch_rows=4096):
    return [row for batch in selection.batches(batch_rows) for row in batch.to_pylist()]


class TestColumns:
    def test_are_carried_in_their_order_and_the_prompts_come_after(self, source):
        selection = Selection(source, prompt={"text"}, columns=["score", "id"])
        assert selection.carried == ("score", "id")
        assert selection.schema.names == ["score", "id", "text"]
        assert [list(row) for row in rows_of(selection)] == [["score", "id", "text"]] * 4
        assert [str(row["id"]) for row in rows_of(selection)] == ["1", "2", "3", "4"]

    def test_of_the_condition_are_read_and_not_carried(self, source):
        selection = Selection(source, prompt={"text"}, columns=["text"], where="lang = 'de'")
        assert rows_of(selection) == [{"text": "a"}, {"text": "d"}]

    def test_that_are_not_there_name_those_that_are(self, source):
        with pytest.raises(LLMInputError) as caught:
            Selection(source, columns=["id", "nosuch", "Text"])
        assert str(caught.value) == (
            "columns names 'nosuch', 'Text', which the source does not have; its columns are 'id', 'lang', 'text', "
            "'score'"
        )

    def test_without_them_everything_is_carried(self, source):
        selection = Selection(source, prompt={"text"})
        assert selection.carried is None
        assert selection.schema == source.schema

    def test_of_folders_can_be_all_that_is_needed(self, days):
        assert rows_of(Selection(days, columns=["ds"]))[::4] == [
            {"ds": "2026-01-01"},
            {"ds": "2026-01-02"},
            {"ds": None},
        ]

    def test_that_are_not_needed_are_not_read(self, tmp_path):
        """A page of another column is broken, and nobody looks at it."""
        table = pa.table({"a": ["a" * 50] * 1000, "b": ["b" * 50] * 1000})
        pq.write_table(table, tmp_path / "x.parquet", compression="gzip", use_dictionary=False)
        meta = pq.read_metadata(tmp_path / "x.parquet").row_group(0).column(1)
        data = bytearray((tmp_path / "x.parquet").read_bytes())
        data[meta.data_page_offset : meta.data_page_offset + 40] = b"\xff" * 40
        (tmp_path / "x.parquet").write_bytes(data)
        source = open_source(str(tmp_path))
        assert len(rows_of(Selection(source, columns=["a"]))) == 1000
        with pytest.raises(LLMInputError, match=r"x\.parquet"):
            rows_of(Selection(source, columns=["b"]))


class TestWhere:
    def test_comes_before_the_limit(self, source):
        selection = Selection(source, where="lang = 'de'", limit=1)
        assert [row["text"] for row in rows_of(selection)] == ["a"]
        assert [row["text"] for row in rows_of(Selection(source, where="text > 'b'", limit=5))] == ["c", "d"]

    @pytest.mark.parametrize("batch_rows", [1, 2, 3, 4096])
    def test_takes_the_same_rows_however_they_are_read(self, source, batch_rows):
        selection = Selection(source, where="text IN ('a', 'c', 'd')")
        batches = list(selection.batches(batch_rows))
        assert [row["text"] for batch in batches for row in batch.to_pylist()] == ["a", "c", "d"]
        assert all(0 < batch.num_rows <= batch_rows for batch in batches)
        assert selection.report["rows_left_out"] == 1

    def test_gathers_the_few_rows_that_are_left(self, tmp_path):
        pq.write_table(pa.table({"n": range(10_000)}), tmp_path / "a.parquet", row_group_size=100)
        selection = Selection(
            open_source(str(tmp_path)), where="n IN (5, 205, 9999) OR n BETWEEN 300 AND 320"
        )
        batches = list(selection.batches(10))
        assert sum(batch.num_rows for batch in batches) == 24
        assert len(batches) <= 4
        assert selection.report["rows_left_out"] == 10_000 - 24

    def test_may_take_nothing(self, source):
        selection = Selection(source, where="text = 'z'")
        assert rows_of(selection) == []
        assert selection.report["rows_left_out"] == 4

    def test_may_be_an_expression_of_arrow(self, parquet):
        selection = Selection(parquet, columns=["id"], where=pc.field("score") > 5)
        assert rows_of(selection) == [{"id": 3}, {"id": 4}]
        assert selection.report["where"] == "(score > 5)"

    def test_that_does_not_fit_is_refused_before_a_row_is_read(self, parquet):
        with pytest.raises(LLMInputError, match="character 1: there is no column 'nosuch'"):
            Selection(parquet, where="nosuch = 1")

    def test_is_not_compared_with_the_columns_of_an_empty_source(self, tmp_path):
        (tmp_path / "a.csv").write_bytes(b"")
        source = open_source(str(tmp_path), columns_if_empty=["text", "n"])
        assert rows_of(Selection(source, columns=["text"], where="n > 5")) == []


class TestFolders:
    def test_that_cannot_match_are_passed_over(self, days, tmp_path):
        selection = Selection(days, where="ds >= '2026-01-02' AND score > 5")
        assert [(row["ds"], row["id"]) for row in rows_of(selection)] == [
            ("2026-01-02", 3),
            ("2026-01-02", 4),
        ]
        assert selection.report == {
            "columns": None,
            "where": "ds >= '2026-01-02' AND score > 5",
            "limit": None,
            "rows_left_out": 2,
            "files_skipped": 2,
        }
        (tmp_path / "ds=2026-01-01" / "a.parquet").unlink()
        assert len(rows_of(selection)) == 2

    def test_without_a_value_are_null(self, days):
        selection = Selection(days, where="ds IS NULL")
        assert [row["ds"] for row in rows_of(selection)] == [None] * 4
        assert selection.report["files_skipped"] == 2

    def test_whose_name_a_file_has_as_a_column_are_read(self, tmp_path):
        (tmp_path / "lang=xx").mkdir()
        WRITERS["parquet"](tmp_path / "lang=xx" / "a.parquet")
        selection = Selection(open_source(str(tmp_path)), where="lang = 'de'")
        assert [row["id"] for row in rows_of(selection)] == [1, 4]

    def test_all_passed_over_still_have_their_schema(self, days):
        selection = Selection(days, where="ds = '1999-01-01'")
        assert rows_of(selection) == []
        assert selection.schema == days.schema
        assert selection.report["files_skipped"] == 3
