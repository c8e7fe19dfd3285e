import os

import pytest

from airflow_llm_provider.dataset.files.layout import SHARDS, STAGING
from airflow_llm_provider.dataset.merging.sweep import sweep

DAY = 86_400
TOKEN = "0" * 32


class TestSweep:
    def test_what_killed_processes_left_goes_after_a_day(self, workbench):
        storage = workbench.layout.storage
        storage.write_bytes(f"{STAGING}/{TOKEN}/part-00000.parquet", b"x")
        now = storage.modified(f"{STAGING}/{TOKEN}/part-00000.parquet")
        sweep(workbench.layout, now + DAY - 10)
        assert len(workbench.files(STAGING)) == 1
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
