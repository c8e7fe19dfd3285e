"""A whole run on S3: a real client against a server on loopback."""

from __future__ import annotations

import contextlib
import json
import logging
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import requests
from airflow.sdk.io import store
from moto.s3.models import s3_backends
from moto.server import ThreadedMotoServer
from s3fs import S3FileSystem

from airflow_llm_provider.dataset import read_results
from airflow_llm_provider.dataset.files.layout import Layout
from airflow_llm_provider.dataset.files.urls import Resolver, resolve
from airflow_llm_provider.dataset.leases.lease import Lease
from airflow_llm_provider.dataset.leases.lease_record import Owner, Work
from airflow_llm_provider.dataset.leases.lease_terms import LeaseTerms
from airflow_llm_provider.engine.clock import Clock, SystemClock
from airflow_llm_provider.errors import LLMBusyError, LLMInputError, LLMRetryableError, LLMStateError
from airflow_llm_provider.hooks.storage import storage_resolver
from airflow_llm_provider.jobs import CompleteOptions, ShardRun, SplitOptions, merge, split
from airflow_llm_provider.spec import CompletionSpec
from airflow_llm_provider.testing.clock import ManualClock
from airflow_llm_provider.testing.scripted_client import ScriptedClient

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsspec import AbstractFileSystem

ACCOUNT = "123456789012"
SPEC = CompletionSpec(model="gpt-4o-mini", prompt="{{ text }}")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3FileSystem]:
    """The filesystem as fsspec makes it by itself, configured as any AWS client is."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "someone")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    S3FileSystem.clear_instance_cache()
    filesystem = S3FileSystem()
    filesystem.mkdir("lake")
    yield filesystem
    S3FileSystem.clear_instance_cache()
    requests.post(f"{endpoint}/moto-api/reset-auth", data="inf", timeout=10)
    requests.post(f"{endpoint}/moto-api/reset", timeout=10)


@pytest.fixture
def source(s3: S3FileSystem) -> str:
    with s3.open("lake/in/tickets.parquet", "wb") as file:
        pq.write_table(pa.table({"id": range(9), "text": [f"text {n}" for n in range(9)]}), file)
    return "s3://lake/in/"


def client(asked: list[str], clock: ManualClock, fail_from: int = 99) -> ScriptedClient:
    def respond(call: Any) -> Any:
        asked.append(call.body["messages"][-1]["content"])
        if len(asked) > fail_from:
            raise KeyboardInterrupt  # stands for the end of the process, right after an answer
        return f"answer to {asked[-1]}"

    return ScriptedClient(respond, clock=clock, latency=0.1)


def run(
    source: str,
    destination: str,
    asked: list[str],
    fail_from: int = 99,
    resolver: Resolver = resolve,
    *,
    options: SplitOptions | None = None,
    merged: ManualClock | None = None,
) -> Any:
    clock = ManualClock()
    options = options or SplitOptions(shard_tokens=30)
    result = split(SPEC, source, destination, options=options, clock=clock, resolver=resolver)
    states = []
    for reference in result.references:
        shard = ShardRun(
            reference,
            client=client(asked, clock, fail_from),
            options=CompleteOptions(concurrency=2),
            clock=clock,
            resolver=resolver,
            rng=random.Random(7),
        )
        states.append(shard.run().to_json())
    return merge(result.plan_uri or "", states=states, clock=merged or clock, resolver=resolver)


def afresh(resolver: Resolver) -> Resolver:
    """Resolve as in a new process."""

    def resolve(url: str) -> tuple[AbstractFileSystem, str]:
        store._STORE_CACHE.clear()
        S3FileSystem.clear_instance_cache()
        return resolver(url)

    return resolve


class TestRunOnS3:
    def test_every_row_comes_out_and_is_paid_once(self, source: str, s3: S3FileSystem) -> None:
        asked: list[str] = []
        summary = run(source, "s3://lake/out", asked)
        table = read_results("s3://lake/out")
        assert table.column("id").to_pylist() == list(range(9))
        assert table.column("answer").to_pylist() == [f"answer to text {n}" for n in range(9)]
        assert summary.rows == len(asked) == 9
        run(source, "s3://lake/out", asked)
        assert len(asked) == 9
        visible = [
            name for name in s3.ls("lake/out", detail=False) if not name.rsplit("/", 1)[-1].startswith("_")
        ]
        assert visible == ["lake/out/part-00000.parquet"]
        assert s3.find("lake/out/_llm/journal") == []
        assert s3.find("lake/out/_llm/staging") == []

    def test_a_run_that_ended_in_the_middle_goes_on_from_the_journals_parts(
        self, source: str, s3: S3FileSystem
    ) -> None:
        asked: list[str] = []
        with pytest.raises(KeyboardInterrupt):
            run(source, "s3://lake/out", asked, fail_from=2)
        assert s3.find("lake/out/_llm/journal")
        with pytest.raises(LLMStateError, match="no run has finished there"):
            read_results("s3://lake/out")
        again: list[str] = []
        run(source, "s3://lake/out", again)
        in_flight = 2
        assert asked[0] not in again
        assert len(asked) + len(again) <= 9 + in_flight
        assert read_results("s3://lake/out").num_rows == 9

    def test_partitions_take_the_place_of_one_folder_and_old_plans_go(
        self, source: str, s3: S3FileSystem
    ) -> None:
        asked: list[str] = []
        run(source, "s3://lake/out", asked)
        table = pa.table({"id": [7, 8, 9], "text": ["text 7", "text 8", "new"]})
        with s3.open("lake/in/tickets.parquet", "wb") as file:
            pq.write_table(table, file)
        options = SplitOptions(split_by="file", partition_by=["id"])
        in_a_month = ManualClock(epoch=time.time() + 31 * 86_400)
        run(source, "s3://lake/out", asked, options=options, merged=in_a_month)
        assert asked[9:] == ["new"]
        visible = [name for name in s3.find("lake/out") if "/_" not in name]
        assert visible == [f"lake/out/id={n}/part-0000{n - 7}.parquet" for n in (7, 8, 9)]
        assert read_results("s3://lake/out").select(["id", "text"]).equals(table)
        left = {folder: len(s3.find(f"lake/out/_llm/{folder}")) for folder in ("plans", "shards", "results")}
        assert left == {"plans": 1, "shards": 0, "results": 1}
        assert len(s3.find("lake/out/_llm/counted")) == 2

    def test_a_table_is_read_from_a_glob_and_a_partitioned_folder(self, s3: S3FileSystem) -> None:
        for day in ("2026-01-01", "2026-01-02"):
            with s3.open(f"lake/days/ds={day}/a b#1.csv", "wb") as file:
                file.write(f"text\n{day}\n".encode())
        asked: list[str] = []
        run("s3://lake/days/", "s3://lake/out", asked)
        assert read_results("s3://lake/out").column("ds").to_pylist() == ["2026-01-01", "2026-01-02"]
        run("s3://lake/days/ds=2026-01-0[2]/*.csv", "s3://lake/out2", asked)
        assert read_results("s3://lake/out2").column("text").to_pylist() == ["2026-01-02"]

    def test_a_missing_bucket_is_named_before_anything_is_asked(self, source: str) -> None:
        with pytest.raises(LLMInputError, match="s3://nowhere/in"):
            run("s3://nowhere/in/", "s3://lake/out", [])
        with pytest.raises(LLMStateError, match="s3://nowhere/out"):
            run(source, "s3://nowhere/out", [])

    def test_an_airflow_connection_says_where_and_who(
        self, source: str, s3: S3FileSystem, endpoint: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        extra = {"endpoint_url": endpoint, "region_name": "us-east-1"}
        connection = {"conn_type": "aws", "login": "someone", "password": "secret", "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_MY_LAKE", json.dumps(connection))
        asked: list[str] = []
        # Every task is a process of its own, which meets the connection for the first time.
        run(source, "s3://lake/out", asked, resolver=afresh(storage_resolver("my_lake")))
        run("s3://my_lake@lake/in/", "s3://my_lake@lake/out", asked, resolver=storage_resolver())
        assert len(asked) == 9
        assert read_results("s3://my_lake@lake/out", resolver=storage_resolver()).num_rows == 9


class TestLeaseOnS3:
    """What holds between processes of different machines, which know nothing of each other but the bucket."""

    @staticmethod
    def lease(run: str, clock: Clock | None = None) -> Lease:
        return Lease(
            Layout("s3://lake/out"),
            Work.COMPLETE,
            Owner(run=run),
            what="shard 0 of",
            plan="p",
            shard="s",
            terms=LeaseTerms(clock=clock or SystemClock()),
        )

    def test_A21_a_second_run_is_refused_before_it_asks_anything(self, source: str, s3: S3FileSystem) -> None:
        asked: list[str] = []
        with self.lease("run 1 of DAG nightly"):
            with pytest.raises(LLMBusyError, match="s3://lake/out is in use by run 1 of DAG nightly"):
                run(source, "s3://lake/out", asked)
            assert asked == []
        assert run(source, "s3://lake/out", asked).requests == len(asked) == 9
        assert s3.find("lake/out/_llm/leases") == []

    def test_of_many_that_come_at_once_one_at_a_time_gets_it(self, s3: S3FileSystem) -> None:
        holders: list[str] = []
        most: list[int] = []
        ended: list[str] = []

        def work(name: str) -> None:
            while name not in ended:
                with contextlib.suppress(LLMBusyError), self.lease(name):
                    holders.append(name)
                    most.append(len(holders))
                    time.sleep(0.01)
                    holders.remove(name)
                    ended.append(name)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, "abcd"))
        assert sorted(ended) == list("abcd")
        assert most == [1, 1, 1, 1]
        assert s3.find("lake/out/_llm/leases") == []

    def test_one_that_ran_out_is_taken_over_and_its_holder_finds_out(self, s3: S3FileSystem) -> None:
        clock = ManualClock()
        with self.lease("first", clock=clock) as first:
            first._ended.set()  # as if its process were stopped
            first._keeper.join()
            clock.jump(69)
            with pytest.raises(LLMBusyError), self.lease("second", clock=clock):
                pass
            clock.jump(1)
            with self.lease("second", clock=clock) as second:
                assert second.held
                with pytest.raises(LLMRetryableError, match="the lease on shard 0 of s3://lake/out is lost"):
                    first.check()


class TestStorageOnS3:
    @pytest.fixture
    def layout(self, s3: S3FileSystem) -> Layout:
        return Layout("s3://lake/out")

    def test_lists_more_files_than_one_answer_holds(self, layout: Layout) -> None:
        backend = s3_backends[ACCOUNT]["aws"]
        for n in range(1005):
            backend.put_object("lake", f"out/many/{n:05d}.parquet", b"")
        backend.put_object("lake", "out/many/folder/x", b"")
        files = layout.storage.files("many")
        assert files == [f"many/{n:05d}.parquet" for n in range(1005)]
        assert layout.storage.folders("many") == ["many/folder"]

    def test_what_may_not_be_read_is_not_taken_for_absent(self, layout: Layout, endpoint: str) -> None:
        layout.storage.write_bytes("a.json", b"1")
        requests.post(f"{endpoint}/moto-api/reset-auth", data="0", timeout=10)
        for look in (
            lambda: layout.storage.read_bytes("a.json"),
            lambda: layout.storage.read_bytes("b.json"),
            lambda: layout.storage.size("a.json"),
            lambda: layout.storage.files(""),
            lambda: layout.storage.write_bytes("c.json", b"1"),
            lambda: layout.storage.delete("a.json"),
            lambda: layout.storage.move("a.json", "b.json"),
        ):
            with pytest.raises(LLMStateError, match="s3://lake/out") as caught:
                look()
            assert "secret" not in str(caught.value)

    def test_a_writer_that_is_killed_leaves_nothing(self, layout: Layout) -> None:
        script = (
            "import os, signal\n"
            "from airflow_llm_provider.dataset.files.layout import Layout\n"
            "with Layout('s3://lake/out').storage.create('results/a.parquet') as file:\n"
            "    file.write(b'x' * 100_000)\n"
            "    file.flush()\n"
            "    os.kill(os.getpid(), signal.SIGKILL)\n"
        )
        killed = subprocess.run([sys.executable, "-c", script], check=False, timeout=60)
        assert killed.returncode == -signal.SIGKILL
        assert layout.storage.files("results") == []

    def test_a_file_is_replaced_moved_and_deleted(self, layout: Layout) -> None:
        storage = layout.storage
        storage.write_bytes("f/a b#%20[x]=é.json", b"one")
        storage.write_bytes("f/a b#%20[x]=é.json", b"two")
        with contextlib.suppress(KeyError), storage.create("f/a b#%20[x]=é.json") as file:
            file.write(b"half")
            raise KeyError
        assert storage.read_bytes("f/a b#%20[x]=é.json") == b"two"
        storage.move("f/a b#%20[x]=é.json", "g/b.json")
        assert storage.read_bytes("f/a b#%20[x]=é.json") is None
        assert storage.read_bytes("g/b.json") == b"two"
        storage.delete_folder("g")
        storage.delete_folder("g")
        assert storage.files("g") == []
