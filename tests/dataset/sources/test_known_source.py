"""Some files of a source are read as the whole source would read them."""

import dataclasses
import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_llm_provider.dataset.sources.source import open_source
from airflow_llm_provider.errors import LLMInputError


def write_parquet(folder):
    for name, table in (
        ("a=1/x.parquet", pa.table({"n": pa.array([1, 2], pa.int32())})),
        ("a=2/y.parquet", pa.table({"n": pa.array([3], pa.int64()), "t": ["z"]})),
    ):
        (folder / name).parent.mkdir()
        pq.write_table(table, folder / name)


def write_csv(folder):
    (folder / "x.csv").write_text("n\n007\n")
    (folder / "y.csv").write_text("t,n\nz,8\n")


def write_jsonl(folder):
    for name, rows in (
        ("x.jsonl", [{"n": 1, "m": "text"}]),
        ("y.jsonl", [{"n": 1.5, "m": {"a": 1}}, {"t": None}]),
    ):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def read(source):
    return pa.Table.from_batches(source.batches(), source.schema)


@pytest.fixture(params=[write_parquet, write_csv, write_jsonl])
def folder(request, tmp_path):
    request.param(tmp_path)
    return tmp_path


def open_some(whole, files):
    known = whole.known
    # As it crosses JSON.
    facts = json.loads(json.dumps(known.facts))
    return open_source(whole.url, known=dataclasses.replace(known, files=files, facts=facts))


class TestKnown:
    def test_G1_H9_parts_are_the_whole(self, folder):
        whole = open_source(str(folder))
        parts = [read(open_some(whole, (file,))) for file in whole.files]
        assert pa.concat_tables(parts).equals(read(whole))
        assert [note for file in whole.files for note in open_some(whole, (file,)).notes] == []

    def test_a_file_of_the_part_that_changed_is_named(self, folder):
        whole = open_source(f"{folder}/**/*.*")
        first, second = (open_some(whole, (file,)) for file in whole.files)
        os.utime(whole.files[0].path, (1, 1))
        second.check_unchanged()
        with pytest.raises(LLMInputError, match=rf"changed since it was listed \({whole.files[0].path}\)"):
            first.check_unchanged()

    def test_a_single_file_that_is_gone_is_named(self, folder):
        path = open_source(str(folder)).files[0].path
        whole = open_source(path)
        part = open_some(whole, whole.files)
        part.check_unchanged()
        Path(path).unlink()
        with pytest.raises(LLMInputError, match="changed since it was listed"):
            part.check_unchanged()
