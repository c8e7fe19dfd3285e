from __future__ import annotations

import json
import logging
import traceback
from typing import TYPE_CHECKING, Any

import pytest

from airflow_llm_provider import CompleteShardOperator, LLMHook, MergeShardsOperator
from airflow_llm_provider.hooks.compat import AirflowFailException
from airflow_llm_provider.testing.scripted_server import Rule, ScriptedServer

if TYPE_CHECKING:
    from collections.abc import Iterator

KEY = "sk-very-secret-0123456789"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedServer]:
    with ScriptedServer() as running:
        fields = {
            "conn_type": "llm",
            "host": running.base_url,
            "password": KEY,
            "extra": {"organization": "org-1", "project": "proj-1", "headers": '{"X-Team": "search"}'},
        }
        monkeypatch.setenv("AIRFLOW_CONN_LLM_DEFAULT", json.dumps(fields))
        yield running


def complete(night: Any, shard: dict[str, Any]) -> dict[str, Any]:
    return CompleteShardOperator(task_id="complete", shard=shard, max_attempts=1).execute(night.context)


class TestTheWholeWay:
    def test_rows_in_are_rows_out(self, night: Any, server: ScriptedServer) -> None:
        states = [complete(night, shard) for shard in night.split()]
        summary = MergeShardsOperator(task_id="merge", plan=night.plan, states=states).execute(night.context)
        assert summary["rows_by_status"] == {"success": 5}
        assert server.stats()["answered"] == 5

    def test_the_connection_reaches_every_request(self, night: Any, server: ScriptedServer) -> None:
        complete(night, night.split()[0])
        headers = {name.lower(): value for name, value in server.requests[0].headers.items()}
        assert server.requests[0].authorized
        assert (headers["openai-organization"], headers["openai-project"]) == ("org-1", "proj-1")
        assert headers["x-team"] == "search"

    def test_the_log_has_no_line_for_every_request(
        self, night: Any, server: ScriptedServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        complete(night, night.split()[0])
        assert server.stats()["answered"] == 2
        assert "HTTP Request" not in caplog.text

    def test_a_keyless_server_gets_no_key_of_anyones(
        self, night: Any, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        monkeypatch.setenv(
            "AIRFLOW_CONN_LLM_DEFAULT", json.dumps({"conn_type": "llm", "host": server.base_url})
        )
        complete(night, night.split()[0])
        assert not server.requests[0].authorized

    def test_test_connection_lists_the_models(self, server: ScriptedServer) -> None:
        works, text = LLMHook().test_connection()
        assert works, text
        assert server.base_url in text


class TestNothingLeaks:
    @pytest.mark.parametrize(
        "error",
        [
            {
                "status": 401,
                "body": {
                    "error": {"message": f"Incorrect API key provided: {KEY}", "code": "invalid_api_key"}
                },
            },
            {
                "status": 400,
                "body": {
                    "error": {
                        "message": "Unsupported value",
                        "param": "temperature",
                        "code": "unsupported_value",
                    }
                },
            },
            {
                "status": 404,
                "body": {"error": {"message": "There is no such model", "code": "model_not_found"}},
            },
        ],
    )
    def test_neither_row_nor_key_is_in_traceback_log_or_xcom(
        self,
        night: Any,
        server: ScriptedServer,
        error: dict[str, Any],
        caplog: pytest.LogCaptureFixture,
        capsys: Any,
    ) -> None:
        caplog.set_level(logging.DEBUG, "airflow_llm_provider")
        night.write("SECRET-ROW")
        shard = night.split()[0]
        server.script(Rule(**error))
        with pytest.raises(AirflowFailException) as caught:
            complete(night, shard)
        printed = capsys.readouterr()
        everything = (
            "".join(traceback.format_exception(caught.value)) + caplog.text + printed.out + printed.err
        )
        everything += json.dumps(night.ti.xcoms)
        assert "SECRET-ROW" not in everything
        assert KEY not in everything
