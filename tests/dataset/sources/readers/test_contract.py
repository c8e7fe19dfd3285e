"""What holds for every format whose columns have types."""

import datetime as dt
import json
import random
import sys

import pyarrow as pa
import pytest

from airflow_llm_provider.dataset.sources.selection import Selection
from airflow_llm_provider.dataset.sources.source import open_source
from airflow_llm_provider.errors import LLMInputError
from tests.dataset.sources.readers.writers import WRITERS

TABLE = pa.table(
    {
        "id": pa.array([1, 2, None, 4], pa.int64()),
        "text": ["a", None, "c", "é\n\U0001f600"],
        "score": pa.array([0.5, 1.5, None, 2.0], pa.float64()),
        "ok": [True, None, False, True],
        "day": [dt.date(2026, 1, 2), dt.date(1999, 12, 31), None, dt.date(2026, 1, 1)],
    }
)


@pytest.fixture(params=WRITERS)
def ending(request):
    return request.param


@pytest.fixture
def files(ending):
    """Write tables as files of the format."""
    return lambda **tables: {f"{name}.{ending}": WRITERS[ending](table) for name, table in tables.items()}


class TestContract:
    def test_values_and_types_are_those_of_the_file(self, read, files):
        assert read(files(a=TABLE)).cast(TABLE.schema) == TABLE
        assert [str(field.type) for field in read(files(a=TABLE)).schema] == [
            "int64",
            "string",
            "double",
            "bool",
            "date32[day]",
        ]

    @pytest.mark.parametrize("batch_rows", [1, 3, 4096])
    def test_many_files_are_one_table_in_order(self, read, files, batch_rows):
        table = read(files(b=TABLE.slice(3), a=TABLE.slice(0, 3)), batch_rows=batch_rows)
        assert table.to_pylist() == TABLE.to_pylist()

    def test_a_column_that_a_file_lacks_is_null_there(self, read, files):
        table = read(files(a=TABLE.select(["id", "text"]), b=TABLE.select(["text", "day"])))
        assert table.schema.names == ["id", "text", "day"]
        assert table.to_pylist() == [
            *({**row, "day": None} for row in TABLE.select(["id", "text"]).to_pylist()),
            *({"id": None, **row} for row in TABLE.select(["text", "day"]).to_pylist()),
        ]

    def test_A2_G15_no_rows_keep_their_columns(self, read, files):
        table = read(files(a=TABLE.slice(0, 0)))
        assert table.num_rows == 0
        assert table.schema.names == TABLE.schema.names

    def test_columns_and_rows_are_selected(self, read, files, tmp_path):
        read(files(a=TABLE))
        source = open_source(str(tmp_path))
        selection = Selection(
            source, prompt={"text"}, columns=["day", "id"], where="score >= 1.5 OR ok = FALSE"
        )
        assert pa.Table.from_batches(selection.batches()).to_pylist() == (
            TABLE.select(["day", "id", "text"]).take([1, 2, 3]).to_pylist()
        )

    def test_partitions_alone_still_count_the_rows(self, read, files, tmp_path):
        read({f"ds=1/{name}": data for name, data in files(a=TABLE).items()})
        selection = Selection(open_source(str(tmp_path)), columns=["ds"])
        assert [row for batch in selection.batches() for row in batch.to_pylist()] == [{"ds": "1"}] * 4

    def test_reads_from_an_object_store_too(self, files, make_workbench):
        storage = make_workbench("memory").layout.storage
        ((name, data),) = files(a=TABLE).items()
        storage.write_bytes(name, data)
        assert [
            row for batch in open_source(storage.root).batches() for row in batch.to_pylist()
        ] == TABLE.to_pylist()

    def test_some_files_are_read_as_all_would_be(self, read, files, tmp_path):
        read(files(a=TABLE.select(["id", "text"]), b=TABLE.select(["score", "text"])))
        whole = open_source(str(tmp_path))
        known = whole.known
        assert json.loads(json.dumps(dict(known.facts))) == known.facts
        for file in whole.files:
            some = open_source(str(tmp_path), known=type(known)(**{**vars(known), "files": (file,)}))
            assert some.schema == whole.schema
            assert sum(batch.num_rows for batch in some.batches()) == 4

    @pytest.mark.parametrize("part", range(12))
    def test_G14_a_cut_file_is_named(self, files, ending, attempt, part):
        ((name, data),) = files(a=TABLE).items()
        table, message = attempt({name: data[: len(data) * part // 12]})
        assert table is None, table
        assert name in message

    def test_a_file_of_another_format_is_named(self, attempt, ending):
        _, message = attempt({f"a.{ending}": b"id,text\n1,a\n" * 50})
        assert f"a.{ending}" in message

    def test_a_packed_file_is_of_unknown_format(self, read, files):
        ((name, data),) = files(a=TABLE).items()
        with pytest.raises(LLMInputError, match="unknown format"):
            read({f"{name}.gz": data})


class TestExtras:
    @pytest.mark.parametrize(
        ("ending", "module", "extra"), [("xlsx", "python_calamine", "excel"), ("avro", "fastavro", "avro")]
    )
    def test_that_are_missing_are_named(self, read, monkeypatch, ending, module, extra):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(
            LLMInputError,
            match=rf"needs {module}, which is not installed: pip install 'airflow-llm-provider\[{extra}\]'",
        ):
            read({f"a.{ending}": b"x"})


class TestBrokenBytes:
    @pytest.mark.parametrize("ending", ["avro", "xlsx"])
    def test_are_an_error_that_names_the_file_or_do_not_change_the_shape(self, attempt, ending):
        """Neither Avro nor the values inside it carry sums; a workbook does, and Excel's rows must be right."""
        name, data = f"a.{ending}", WRITERS[ending](TABLE)
        rng = random.Random(7)
        outcomes = set()
        for _ in range(80):
            broken = bytearray(data)
            for _ in range(rng.randint(1, 3)):
                broken[rng.randrange(len(broken))] = rng.randrange(256)
            table, message = attempt({name: bytes(broken)})
            if message is not None:
                assert name in message, message
                outcomes.add("error")
            elif ending == "xlsx":
                assert table.cast(TABLE.schema) == TABLE
                outcomes.add("rows")
            else:
                assert table.num_rows == TABLE.num_rows
                outcomes.add("rows")
        assert "error" in outcomes
