from __future__ import annotations

import os

import pytest

from airflow_llm_provider.dataset.counting.cores import cores

V2 = "0::{}\n"
V1 = "9:name=systemd:/x\n4:cpu,cpuacct:{}\n3:cpuset:/x\n"


@pytest.fixture(autouse=True)
def bound_to_eight(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)


@pytest.fixture
def system(tmp_path):
    def write(**files):
        for name, content in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        return tmp_path

    return write


class TestCores:
    def test_affinity_alone_counts_where_nobody_tells_of_a_quota(self, tmp_path):
        assert cores(tmp_path) == 8

    def test_affinity_counts_below_a_quota(self, system):
        assert (
            cores(system(**{"proc/self/cgroup": V2.format("/"), "sys/fs/cgroup/cpu.max": "900000 100000"}))
            == 8
        )

    def test_a_system_without_affinity_has_the_machines_cores(self, monkeypatch, tmp_path):
        monkeypatch.delattr(os, "sched_getaffinity")
        monkeypatch.setattr(os, "cpu_count", lambda: None)
        assert cores(tmp_path) == 1

    @pytest.mark.parametrize(
        ("quota", "expected"),
        [("100000 100000\n", 1), ("150000 100000\n", 2), ("20000 100000\n", 1), ("max 100000\n", 8)],
    )
    def test_a_containers_quota_counts_a_part_of_a_core_as_one(self, system, quota, expected):
        assert (
            cores(system(**{"proc/self/cgroup": V2.format("/"), "sys/fs/cgroup/cpu.max": quota})) == expected
        )

    def test_the_smallest_quota_of_the_groups_around_counts(self, system):
        files = {
            "proc/self/cgroup": V2.format("/pods/one/task"),
            "sys/fs/cgroup/pods/one/task/cpu.max": "max 100000",
            "sys/fs/cgroup/pods/one/cpu.max": "200000 100000",
            "sys/fs/cgroup/pods/cpu.max": "600000 100000",
        }
        assert cores(system(**files)) == 2

    @pytest.mark.parametrize("folder", ["docker/one/", ""])
    def test_version_1_is_read_in_its_group_or_at_the_root_of_a_container(self, system, folder):
        files = {
            "proc/self/cgroup": V1.format("/docker/one"),
            f"sys/fs/cgroup/cpu/{folder}cpu.cfs_quota_us": "300000\n",
            f"sys/fs/cgroup/cpu/{folder}cpu.cfs_period_us": "100000\n",
        }
        assert cores(system(**files)) == 3

    @pytest.mark.parametrize(("quota", "period"), [("-1", "100000"), ("0", "100000"), ("100000", "0")])
    def test_version_1_without_a_quota_has_none(self, system, quota, period):
        files = {
            "proc/self/cgroup": V1.format("/"),
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": quota,
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": period,
        }
        assert cores(system(**files)) == 8

    @pytest.mark.parametrize("content", ["", "x", "1 2 3", b"\xff\xfe", "0::", ":", "0::/../../.."])
    def test_files_that_say_nothing_sensible_say_nothing(self, system, content):
        assert cores(system(**{"proc/self/cgroup": content, "sys/fs/cgroup/cpu.max": b"\xff 1"})) == 8
        assert cores(system(**{"proc/self/cgroup": V2.format("/a"), "sys/fs/cgroup/a/cpu.max": content})) == 8

    def test_this_machine_has_some(self):
        assert 1 <= cores() <= 8
