import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from pyarrow import orc

from airflow_llm_provider.dataset.sources.source import open_source
from airflow_llm_provider.errors import LLMInputError
from airflow_llm_provider.testing.arrow_tables import tables
from tests.dataset.sources.readers.writers import orc_file


class TestOrc:
    @pytest.mark.parametrize(
        ("kind", "values", "read_as"),
        [
            (pa.bool_(), [True, None], pa.bool_()),
            (pa.int8(), [-128, None], pa.int8()),
            (pa.int64(), [2**63 - 1, None], pa.int64()),
            (pa.float32(), [0.5, None], pa.float32()),
            (pa.float64(), [0.1, None], pa.float64()),
            (pa.string(), ["é\0", None], pa.string()),
            (pa.binary(), [b"\xff", None], pa.binary()),
            (pa.date32(), [dt.date(9999, 12, 31), None], pa.date32()),
            (pa.decimal128(38, 2), [Decimal("-1.20"), None], pa.decimal128(38, 2)),
            (pa.timestamp("ns"), [1, None], pa.timestamp("ns")),
            (pa.timestamp("us"), [1, None], pa.timestamp("ns")),
            (pa.timestamp("us", "Asia/Tokyo"), [1, None], pa.timestamp("ns", "UTC")),
            (pa.list_(pa.int64()), [[1, None], None], pa.list_(pa.int64())),
            (pa.struct([("a", pa.string())]), [{"a": "x"}, None], pa.struct([("a", pa.string())])),
            (pa.map_(pa.string(), pa.int64()), [[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
        ],
        ids=str,
    )
    def test_every_type_has_its_arrow_type(self, read, kind, values, read_as):
        table = pa.table({"v": pa.array(values, kind)})
        again = read({"a.orc": orc_file(table)})
        assert again.schema.field("v").type == read_as
        assert again.column("v").cast(kind) == table.column("v")

    def test_a_timestamp_beyond_the_range_of_nanoseconds_is_an_error_and_not_another_one(self, read):
        table = pa.table({"v": pa.array([dt.datetime(9999, 12, 31)], pa.timestamp("us"))})  # noqa: DTZ001
        with pytest.raises(LLMInputError, match=r"a\.orc, stripe 0 is damaged.*out of range for nanosecond"):
            read({"a.orc": orc_file(table)})

    def test_an_arrow_that_would_make_it_another_one_reads_no_timestamps(self, read, monkeypatch):
        class Old(orc.ORCFile):
            def read(self):
                return pa.table({"v": [0]})

        monkeypatch.setattr(orc, "ORCFile", Old)
        data = orc_file(pa.table({"v": pa.array([[1]], pa.list_(pa.timestamp("us")))}))
        with pytest.raises(
            LLMInputError, match=r"a\.orc has timestamps \('v'\), which pyarrow .* reads wrongly"
        ):
            read({"a.orc": data})
        assert read({"a.orc": orc_file(pa.table({"v": [1]}))}).num_rows == 1

    def test_stripes_are_read_one_after_the_other(self, tmp_path):
        table = pa.table({"n": list(range(2000)), "t": ["x" * 100] * 2000})
        (tmp_path / "a.orc").write_bytes(orc_file(table, stripe_size=4096, batch_size=100))
        batches = list(open_source(str(tmp_path)).batches(64))
        assert max(batch.num_rows for batch in batches) <= 64
        assert pa.Table.from_batches(batches).column("n").to_pylist() == list(range(2000))

    def test_G3_types_that_disagree_name_column_and_files(self, read):
        files = {"a.orc": orc_file(pa.table({"v": [1]})), "b.orc": orc_file(pa.table({"v": ["x"]}))}
        with pytest.raises(LLMInputError, match=r"column 'v' is int64 in .*a\.orc and string in .*b\.orc"):
            read(files)

    @settings(max_examples=12)
    @given(table=tables())
    def test_holds_every_value_that_orc_can_hold(self, read, table):
        kept = [name for name in table.schema.names if _orc_holds(table.schema.field(name).type)]
        if kept:
            table = table.select(kept)
            again = read({"a.orc": orc_file(table)}, batch_rows=7)
            assert [
                column.cast(kind) for column, kind in zip(again.columns, table.schema.types, strict=True)
            ] == table.columns


def _orc_holds(kind):
    simple = (
        pa.int8(),
        pa.int32(),
        pa.int64(),
        pa.bool_(),
        pa.string(),
        pa.binary(),
        pa.date32(),
        pa.timestamp("ns"),
    )
    if pa.types.is_list(kind):
        return _orc_holds(kind.value_type)
    return kind in simple or pa.types.is_decimal(kind)
