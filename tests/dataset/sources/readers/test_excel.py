import datetime as dt

import pyarrow as pa
import pytest

from airflow_llm_provider.dataset.sources.formats import ReadOptions
from airflow_llm_provider.dataset.sources.source import open_source
from airflow_llm_provider.errors import LLMInputError
from tests.dataset.sources.readers.writers import workbook

MOMENT = dt.datetime(2026, 1, 2, 3, 4, 5)  # noqa: DTZ001 -- Excel has no zones


def sheet(*values, name="v"):
    """A workbook of one column, and one that keeps rows with a blank cell from being blank."""
    return workbook({"S": [[name, "row"], *([value, n] for n, value in enumerate(values))]})


class TestExcel:
    @pytest.mark.parametrize(
        ("values", "kind", "read_as"),
        [
            (["007", "NA", " ", "é\n"], pa.string(), ["007", "NA", " ", "é\n"]),
            ([1, None, 2**53], pa.int64(), [1, None, 2**53]),
            ([1, 2.5], pa.float64(), [1.0, 2.5]),
            ([1e300, 3], pa.float64(), [1e300, 3.0]),
            ([True, None, False], pa.bool_(), [True, None, False]),
            ([dt.date(2026, 1, 2), None], pa.date32(), [dt.date(2026, 1, 2), None]),
            ([MOMENT], pa.timestamp("us"), [MOMENT]),
            ([dt.date(2026, 1, 2), MOMENT], pa.timestamp("us"), [dt.datetime(2026, 1, 2), MOMENT]),  # noqa: DTZ001
            ([dt.time(1, 2, 3)], pa.time64("us"), [dt.time(1, 2, 3)]),
            ([dt.timedelta(hours=30)], pa.duration("us"), [dt.timedelta(hours=30)]),
            ([None, None], pa.string(), [None, None]),
        ],
    )
    def test_a_column_of_one_kind_has_its_type(self, read, values, kind, read_as):
        table = read({"a.xlsx": sheet(*values)})
        assert table.schema.field("v").type == kind
        assert table.column("v").to_pylist() == read_as
        assert read.notes == []

    def test_a_column_of_several_kinds_is_text_and_says_so(self, read):
        values = [
            "x",
            5,
            5.5,
            True,
            dt.date(2026, 1, 2),
            MOMENT,
            dt.time(1, 2, 3),
            dt.timedelta(hours=30, seconds=5),
            None,
        ]
        table = read({"a.xlsx": sheet(*values)})
        assert table.column("v").to_pylist() == [
            "x",
            "5",
            "5.5",
            "TRUE",
            "2026-01-02",
            "2026-01-02T03:04:05",
            "01:02:03",
            "30:00:05",
            None,
        ]
        assert read.notes == ["columns 'v' hold cells of several kinds: each value is its text"]

    def test_types_are_those_of_all_files(self, read):
        table = read({"a.xlsx": sheet(1), "b.xlsx": sheet(1.5)})
        assert table.column("v").to_pylist() == [1.0, 1.5]
        assert read({"b.xlsx": sheet("x")}).column("v").to_pylist() == ["1", "x"]

    def test_blank_rows_are_no_rows_and_the_first_other_one_names_the_columns(self, read):
        rows = [[], [None, "id", 2026], [None, 1, "a"], [], [None, None, None], [None, None, "b"]]
        table = read({"a.xlsx": workbook({"S": rows})})
        assert table.to_pylist() == [{"id": 1, "2026": "a"}, {"id": None, "2026": "b"}]

    def test_a_value_below_no_name_is_named(self, read):
        rows = [["id", None, "v"], [1, None, 2], [1, "lost", 2]]
        with pytest.raises(LLMInputError, match=r"a\.xlsx, cell B3 has a value, and its column no name"):
            read({"a.xlsx": workbook({"S": rows})})
        wide = [["id"], [1, *[None] * 26, "x"]]
        with pytest.raises(LLMInputError, match="cell AB2 has a value"):
            read({"a.xlsx": workbook({"S": wide})})

    def test_H8_repeated_names_are_refused(self, read):
        with pytest.raises(LLMInputError, match=r"more than one column named 'id' in row 1"):
            read({"a.xlsx": workbook({"S": [["id", "v", "id"], [1, 2, 3]]})})

    def test_cells_without_a_stored_value_are_null(self, read):
        table = read({"a.xlsx": sheet("=1/0", "x", "#N/A")})
        assert table.column("v").to_pylist() == [None, "x", None]

    def test_an_empty_sheet_is_an_empty_source(self, tmp_path):
        (tmp_path / "a.xlsx").write_bytes(workbook({"S": []}))
        source = open_source(str(tmp_path), columns_if_empty=["text"])
        assert source.notes
        assert source.schema.names == ["text"]


class TestSheets:
    BOOK = workbook({"Notes": [["x"], ["n"]], "Tickets": [["x"], ["t"]]})

    def test_the_only_visible_one_is_read(self, read):
        book = workbook({"Old": [["x"], ["o"]], "Now": [["x"], ["n"]]}, hidden={"Old"})
        assert read({"a.xlsx": book}).to_pylist() == [{"x": "n"}]
        assert read({}, sheet="Old").to_pylist() == [{"x": "o"}]

    def test_of_several_one_is_given(self, read):
        with pytest.raises(
            LLMInputError, match="has 2 visible sheets: give sheet=, one of 'Notes', 'Tickets'"
        ):
            read({"a.xlsx": self.BOOK})
        assert read({}, sheet="Tickets").to_pylist() == [{"x": "t"}]

    def test_one_that_is_not_there_is_named(self, read):
        with pytest.raises(LLMInputError, match="has no sheet 'tickets'; its sheets are 'Notes', 'Tickets'"):
            read({"a.xlsx": self.BOOK}, sheet="tickets")

    def test_other_workbooks_are_read_when_the_format_is_given(self, tmp_path):
        (tmp_path / "a.xlsm").write_bytes(workbook({"S": [["x"], [5]]}))
        source = open_source(str(tmp_path), options=ReadOptions(format="excel"))
        assert [batch.to_pylist() for batch in source.batches()] == [[{"x": 5}]]
