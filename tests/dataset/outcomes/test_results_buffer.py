from __future__ import annotations

import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llm_provider.dataset.outcomes.results_buffer import ResultsBuffer

SCHEMA = pa.schema([("number", pa.int64()), ("status", pa.string())])


def batch(first: int, rows: int) -> pa.RecordBatch:
    numbers = list(range(first, first + rows))
    return pa.RecordBatch.from_pydict({"number": numbers, "status": ["success"] * rows}, schema=SCHEMA)


def filled(sizes: list[int], rows: int | None = None) -> ResultsBuffer:
    buffer = ResultsBuffer(SCHEMA, ["status"], rows=sum(sizes) if rows is None else rows)
    first = 0
    for size in sizes:
        buffer.add(batch(first, size))
        first += size
    return buffer


class TestResultsBuffer:
    @given(sizes=st.lists(st.integers(0, 700), max_size=12), told=st.integers(0, 3000))
    def test_every_row_is_in_the_file_in_order(self, sizes, told):
        # However many rows it was told to expect.
        table = pq.read_table(pa.BufferReader(filled(sizes, told).finish()))
        assert table.schema.names == SCHEMA.names
        assert table.column("number").to_pylist() == list(range(sum(sizes)))

    def test_a_group_is_half_of_what_is_to_come(self):
        data = pq.ParquetFile(pa.BufferReader(filled([64] * 64).finish())).metadata
        groups = [data.row_group(index).num_rows for index in range(data.num_row_groups)]
        assert groups == [2048, 1024, 512, 256, 256]

    def test_without_a_thread_every_row_is_in_the_file_once(self, monkeypatch):
        tries = []

        def start(thread):
            tries.append(thread)
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", start)
            buffer = filled([300, 300], 600)
        assert tries
        buffer.add(batch(600, 300))
        table = pq.read_table(pa.BufferReader(buffer.finish()))
        assert table.column("number").to_pylist() == list(range(900))

    def test_what_failed_aside_is_raised_in_the_end(self):
        buffer = ResultsBuffer(SCHEMA, ["status"], rows=1)
        buffer.add(pa.RecordBatch.from_pydict({"other": ["x"] * 300}))
        with pytest.raises(ValueError, match="[Ss]chema"):
            buffer.finish()
