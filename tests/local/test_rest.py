"""The REST client against canned answers."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import httpx
import pytest

from airflow_llm_provider.local.errors import ApiError, LocalError
from airflow_llm_provider.local.rest import AirflowClient, wait_until


class Server:
    """Answers by method and path, and keeps what it was asked."""

    def __init__(self) -> None:
        self.answers = {"GET /auth/token": {"access_token": "one"}}
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers[f"{request.method} {request.url.path}"]
        if callable(answer):
            answer = answer(request)
        return answer if isinstance(answer, httpx.Response) else httpx.Response(200, json=answer)

    def body(self, index: int = -1):
        return json.loads(self.requests[index].content)


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def client(server: Server):
    with AirflowClient("http://127.0.0.1:1/", transport=httpx.MockTransport(server)) as found:
        yield found


class TestTransport:
    def test_it_logs_in_once(self, server: Server, client: AirflowClient) -> None:
        server.answers["GET /api/v2/monitor/health"] = {"ok": True}
        client.health()
        client.health()
        assert [request.url.path for request in server.requests].count("/auth/token") == 1
        assert server.requests[-1].headers["authorization"] == "Bearer one"

    def test_the_api_of_running_tasks_lies_beside(self, server: Server, client: AirflowClient) -> None:
        server.answers["GET /execution/health"] = {"status": "healthy"}
        assert client.execution_health() == {"status": "healthy"}

    def test_a_stale_token_is_replaced_once(self, server: Server, client: AirflowClient) -> None:
        tokens = iter(["old", "new"])
        server.answers["GET /auth/token"] = lambda _: {"access_token": next(tokens)}
        server.answers["GET /api/v2/monitor/health"] = lambda request: (
            {"ok": True} if request.headers["authorization"] == "Bearer new" else httpx.Response(401)
        )
        assert client.health() == {"ok": True}

    def test_a_refusal_names_status_path_and_reason(self, server: Server, client: AirflowClient) -> None:
        server.answers["PATCH /api/v2/dags/a b"] = httpx.Response(409, text="it is busy" + "x" * 5000)
        with pytest.raises(ApiError, match=r"PATCH /api/v2/dags/a%20b answered 409: it is busyx") as caught:
            client.unpause("a b")
        assert caught.value.status == 409
        assert len(str(caught.value)) < 700

    def test_no_answer_is_an_error_of_its_own(self, server: Server, client: AirflowClient) -> None:
        def refuse(_):
            raise httpx.ConnectError("connection refused")

        server.answers["GET /api/v2/monitor/health"] = refuse
        with pytest.raises(ApiError, match=r"answered nothing: ConnectError: connection refused"):
            client.health()

    @pytest.mark.parametrize(
        ("error", "told"),
        [
            (httpx.ConnectError("refused"), "refused; the scheduler ended"),
            (httpx.ReadTimeout("late"), "late"),
        ],
    )
    def test_who_takes_no_connection_is_asked_for_the_reason(
        self, error: httpx.TransportError, told: str
    ) -> None:
        def fail(_):
            raise error

        transport = httpx.MockTransport(fail)
        with (
            AirflowClient("http://x", transport=transport, explain=lambda: "; the scheduler ended") as client,
            pytest.raises(ApiError, match=f"{told}$"),
        ):
            client.health()

    def test_all_pages_are_read(self, server: Server, client: AirflowClient) -> None:
        def page(request: httpx.Request):
            offset = int(request.url.params["offset"])
            found = [{"dag_id": f"d{number}"} for number in range(offset, min(offset + 100, 150))]
            return {"dags": found, "total_entries": 150}

        server.answers["GET /api/v2/dags"] = page
        assert len(client.dag_ids()) == 150


class TestRuns:
    def test_a_run_without_a_logical_date_says_so(self, server: Server, client: AirflowClient) -> None:
        server.answers["POST /api/v2/dags/d/dagRuns"] = {"dag_run_id": "r"}
        assert client.trigger("d", params={"model": "m"}) == "r"
        assert server.body() == {"conf": {"model": "m"}, "logical_date": None}

    def test_a_logical_date_keeps_its_zone(self, server: Server, client: AirflowClient) -> None:
        server.answers["POST /api/v2/dags/d/dagRuns"] = {"dag_run_id": "r"}
        client.trigger("d", logical_date=datetime(2026, 1, 2, tzinfo=UTC), run_id="mine")
        assert server.body() == {
            "conf": {},
            "logical_date": "2026-01-02T00:00:00+00:00",
            "dag_run_id": "mine",
        }

    def test_clearing_one_mapped_instance_touches_nothing_else(
        self, server: Server, client: AirflowClient
    ) -> None:
        server.answers["POST /api/v2/dags/d/clearTaskInstances"] = {
            "task_instances": [{"task_id": "g.complete", "map_index": 3}]
        }
        assert client.clear("d", "r", [("g.complete", 3)]) == [("g.complete", 3)]
        assert server.body() == {
            "dry_run": False,
            "dag_run_id": "r",
            "only_failed": False,
            "include_downstream": False,
            "include_upstream": False,
            "task_ids": [["g.complete", 3]],
        }

    @pytest.mark.parametrize(
        ("stored", "value"),
        [('{"a": 1}', {"a": 1}), ({"a": 1}, {"a": 1}), ('"text"', "text"), ("file:///text", "file:///text")],
    )
    def test_an_xcom_is_decoded(self, server: Server, client: AirflowClient, stored, value) -> None:
        path = "GET /api/v2/dags/d/dagRuns/r/taskInstances/g.complete/xcomEntries/shard_state"
        server.answers[path] = {"value": stored}
        assert client.xcom("d", "r", "g.complete", key="shard_state", map_index=2) == value
        assert server.requests[-1].url.params["map_index"] == "2"


class TestObjects:
    def test_an_existing_pool_is_changed(self, server: Server, client: AirflowClient) -> None:
        server.answers["POST /api/v2/pools"] = httpx.Response(409, text="exists")
        server.answers["PATCH /api/v2/pools/llm"] = {}
        client.put_pool("llm", 7, include_deferred=True)
        assert (server.body()["slots"], server.body()["include_deferred"]) == (7, True)

    def test_another_refusal_is_not_taken_for_an_existing_pool(
        self, server: Server, client: AirflowClient
    ) -> None:
        server.answers["POST /api/v2/pools"] = httpx.Response(403, text="no")
        with pytest.raises(ApiError, match="403"):
            client.put_pool("llm", 7)


class TestWaitUntil:
    def test_what_never_happens_is_explained(self) -> None:
        with pytest.raises(LocalError, match="the moon is not full after 0 s: it is new"):
            wait_until(lambda: False, timeout=0, what="the moon is not full", explain=lambda: ": it is new")
