"""The split refuses a pool in which no shard can ever start."""

from __future__ import annotations

import http.server
import json
import logging
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk import DAG

from airflow_llm_provider import CompleteShardOperator, CompletionSpec, ShardDatasetOperator, llm_map
from airflow_llm_provider.errors import LLMInputError
from airflow_llm_provider.operators.pools import PoolSize, check_pools, pools_url

if TYPE_CHECKING:
    from collections.abc import Iterator

SPEC = CompletionSpec(model="m", prompt="{{ text }}", max_output_tokens=8)
LOG = logging.getLogger(__name__)


def split_of(**options: Any) -> Any:
    with DAG("nightly", schedule=None):
        return llm_map(group_id="label", spec=SPEC, source="in", destination="out", **options).split


@contextmanager
def api_server(
    monkeypatch: pytest.MonkeyPatch, *, status: int = 200, body: bytes = b'{"slots": 4}'
) -> Iterator[list[str]]:
    """An API server that answers everything alike; what it was asked."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Stay silent."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}/execution/"
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTION_API_SERVER_URL", url)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    try:
        yield asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class TestPoolSize:
    def test_A15_a_pool_that_is_missing_is_refused(self) -> None:
        with pytest.raises(
            LLMInputError, match=r"pool 'llm' does not exist.*airflow pools set llm 16 \"requests"
        ):
            PoolSize(name="llm", slots=None).refuse("label.complete", 16)

    def test_A15_a_pool_that_is_smaller_than_one_shard_takes_is_refused(self) -> None:
        with pytest.raises(
            LLMInputError, match="has 8 slots.*takes 16.*at least 16 slots, or lower concurrency to 8"
        ):
            PoolSize(name="llm", slots=8).refuse("label.complete", 16)

    @pytest.mark.parametrize("slots", [16, 17, -1])
    def test_a_pool_with_room_or_without_bound_is_taken(self, slots: int) -> None:
        PoolSize(name="llm", slots=slots).refuse("label.complete", 16)


class TestCheck:
    def asked(self, split: Any, slots: int | None = 64) -> list[tuple[str, str]]:
        found = []

        def ask(pool: str, ti_id: str) -> PoolSize:
            found.append((pool, ti_id))
            return PoolSize(name=pool, slots=slots)

        check_pools(split, "an-id", LOG, ask=ask)
        return found

    def test_asks_for_the_pool_of_the_shards(self) -> None:
        assert self.asked(split_of(pool="llm")) == [("llm", "an-id")]

    @pytest.mark.parametrize("options", [{"concurrency": 9}, {"complete_kwargs": {"pool_slots": 9}}])
    def test_compares_with_what_one_shard_takes(self, options: dict[str, Any]) -> None:
        with pytest.raises(LLMInputError, match=r"one shard of label\.complete takes 9"):
            self.asked(split_of(pool="llm", **options), slots=8)

    def test_looks_at_operators_that_were_put_together_by_hand(self) -> None:
        with DAG("by_hand", schedule=None):
            split = ShardDatasetOperator(task_id="split", spec=SPEC, source="in", destination="out")
            CompleteShardOperator.partial(task_id="ask", pool="mine", concurrency=3).expand(
                shard=split.output
            )
        with pytest.raises(LLMInputError, match="pool 'mine' has 2 slots, and one shard of ask takes 3"):
            self.asked(split, slots=2)

    def test_A15_looks_behind_a_task_for_each_file(self) -> None:
        with DAG("by_file", schedule=None) as dag:
            llm_map(group_id="label", spec=SPEC, source="in", destination="out", split_by="file", pool="llm")
        first = next(task for task in dag.tasks if not task.upstream_task_ids)
        with pytest.raises(LLMInputError, match=r"one shard of label\.complete takes 16"):
            self.asked(first, slots=15)

    def test_asks_nothing_outside_a_dag_or_without_an_id(self) -> None:
        alone = ShardDatasetOperator(task_id="split", spec=SPEC, source="in", destination="out")
        assert self.asked(alone) == []
        check_pools(split_of(), None, LOG, ask=lambda *_: pytest.fail("asked"))


class TestAsking:
    def test_names_pool_and_task_to_the_server_of_the_workers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with (
            api_server(monkeypatch) as asked,
            pytest.raises(LLMInputError, match="has 4 slots, and one shard"),
        ):
            check_pools(split_of(pool="a pool"), "an-id", LOG)
        assert asked == ["/llm-pools/?pool=a+pool&task_instance=an-id"]

    @pytest.mark.parametrize(
        ("status", "body"),
        [
            (403, b'{"error": "no"}'),
            (404, b"{}"),
            (200, b"<html>"),
            (200, b"{}"),
            (200, b"[]"),
            (200, b'{"slots": "4"}'),
        ],
        ids=["refused", "no plugin", "not JSON", "not ours", "a list", "no number"],
    )
    def test_says_once_when_it_cannot_be_known(
        self,
        status: int,
        body: bytes,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        with api_server(monkeypatch, status=status, body=body), caplog.at_level(logging.INFO):
            check_pools(split_of(pool="llm"), "an-id", LOG)
        lines = [record.getMessage() for record in caplog.records if record.name == __name__]
        assert [line.startswith("Pool llm could not be looked at (") for line in lines] == [True]

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({}, "http://localhost:8080/llm-pools"),
            ({"API__BASE_URL": "https://airflow.example/team"}, "https://airflow.example/team/llm-pools"),
            ({"CORE__EXECUTION_API_SERVER_URL": "http://api:8080/execution/"}, "http://api:8080/llm-pools"),
        ],
        ids=["default", "base_url", "execution_api_server_url"],
    )
    def test_finds_the_server_as_workers_do(
        self, options: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name, value in options.items():
            monkeypatch.setenv(f"AIRFLOW__{name}", value)
        assert pools_url() == expected


class TestSplit:
    def refused(self, monkeypatch: pytest.MonkeyPatch, night: Any, **options: Any) -> Any:
        night.ti.id = "an-id"
        with DAG("nightly", schedule=None):
            split = night.splitter(conn_id=None, **options)
            CompleteShardOperator.partial(task_id="complete", pool="llm", concurrency=5).expand(
                shard=split.output
            )
        with api_server(monkeypatch, body=json.dumps({"slots": 4}).encode()):
            return split.execute(night.context)

    def test_fails_without_a_retry_before_anything_is_written(
        self, night: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from airflow_llm_provider.hooks.compat import AirflowFailException

        with pytest.raises(AirflowFailException, match="pool 'llm' has 4 slots"):
            self.refused(monkeypatch, night)
        assert not night.destination.exists()

    def test_of_a_dry_run_only_warns(
        self, night: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert self.refused(monkeypatch, night, dry_run=True) == []
        assert "A real run would fail: pool 'llm' has 4 slots" in capsys.readouterr().out
