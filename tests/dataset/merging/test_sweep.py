import os
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from airflow_llm_provider.dataset.files.layout import INTENT, LEASES, MANIFEST, SHARDS, STAGING, Layout
from airflow_llm_provider.dataset.merging.sweep import sweep

DAY = 86_400
TOKEN = "0" * 32
LAYOUT = Layout("memory://names")
#: Every kind of file that is renamed when it is whole.
WRITTEN = [
    MANIFEST,
    INTENT,
    LAYOUT.plan("p"),
    LAYOUT.shard("s"),
    LAYOUT.results("s"),
    LAYOUT.listing("l"),
    LAYOUT.counted("c"),
    LAYOUT.count("c"),
]


class TestSweep:
    def test_what_killed_processes_left_goes_after_a_day(self, workbench):
        storage = workbench.layout.storage
        storage.write_bytes(f"{STAGING}/{TOKEN}/part-00000.parquet", b"x")
        now = storage.modified(f"{STAGING}/{TOKEN}/part-00000.parquet")
        sweep(workbench.layout, now + DAY - 10)
        assert len(workbench.files(STAGING)) == 1
        sweep(workbench.layout, now + DAY + 10)
        assert workbench.files() == []

    @pytest.mark.parametrize("name", WRITTEN)
    def test_what_a_killed_writer_left_of_any_file_goes_and_what_is_being_written_stays(self, bench, name):
        storage = bench.layout.storage
        killed = storage.create(name)
        killed.__enter__()
        [left] = bench.files()
        os.utime(storage.path(left), (1000, 1000))
        with storage.create(name) as written:
            written.write(b"whole")
            now = storage.modified(left) + DAY
            sweep(bench.layout, now)
            assert left in bench.files()
            sweep(bench.layout, now + 1)
            assert left not in bench.files()
        assert storage.read_bytes(name) == b"whole"
        assert bench.files() == [name]

    def test_output_that_is_being_staged_stays_however_many_folders_it_has(self, bench):
        storage = bench.layout.storage
        storage.write_bytes(f"{STAGING}/{TOKEN}/ds=a/part-00000.parquet", b"x")
        begun = f"{STAGING}/{'1' * 32}"
        Path(storage.path(begun)).mkdir()
        now = storage.modified(begun)
        sweep(bench.layout, now + DAY - 10)
        assert storage.folders(STAGING) == [f"{STAGING}/{TOKEN}", begun]
        sweep(bench.layout, now + DAY + 10)
        assert storage.folders(STAGING) == []

    def test_an_empty_folder_of_an_object_store_keeps_nothing_else(self, make_workbench, monkeypatch):
        workbench = make_workbench("memory")
        storage = workbench.layout.storage
        storage.write_bytes(f"{LEASES}/{TOKEN}.json", b"x")
        now = storage.modified(f"{LEASES}/{TOKEN}.json")
        MemoryFileSystem().makedirs(storage.path(f"{STAGING}/{TOKEN}"))
        modified = MemoryFileSystem.modified

        def as_on_s3(self, path):
            if self.isdir(path):
                raise IsADirectoryError(path)
            return modified(self, path)

        monkeypatch.setattr(MemoryFileSystem, "modified", as_on_s3)
        sweep(workbench.layout, now + DAY + 10)
        assert workbench.files() == []

    @pytest.mark.parametrize("folder", ["", SHARDS])
    def test_temporary_files_of_killed_writers_go_and_nothing_else(self, bench, folder):
        storage = bench.layout.storage
        names = [f".a.parquet.{TOKEN}.tmp", ".mine.tmp", f"{TOKEN}.tmp", "a.parquet", ".hidden"]
        paths = [f"{folder}/{name}".lstrip("/") for name in names]
        for path in paths:
            storage.write_bytes(path, b"x")
            os.utime(storage.path(path), (1000, 1000))
        sweep(bench.layout, 1000 + DAY)
        assert len(bench.files()) == 5
        sweep(bench.layout, 1000 + DAY + 1)
        assert bench.files() == sorted(paths[1:])

    def test_a_merge_sweeps(self, bench, numbers):
        storage = bench.layout.storage
        storage.write_bytes(f"{STAGING}/{TOKEN}/part-00000.parquet", b"x")
        os.utime(storage.path(f"{STAGING}/{TOKEN}/part-00000.parquet"), (1000, 1000))
        bench.merge(bench.run(numbers(range(3))))
        assert bench.files(STAGING) == []
