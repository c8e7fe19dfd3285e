from __future__ import annotations

import json
import traceback
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk import DAG, XComArg
from airflow.sdk.execution_time.timeout import TimeoutPosix

from airflow_llm_provider import CompleteShardOperator, LLMHook, MergeShardsOperator
from airflow_llm_provider.dataset import read_results
from airflow_llm_provider.engine.call import CallError, FailureKind
from airflow_llm_provider.errors import LLMFailureThresholdError, LLMInputError, LLMRetryableError
from airflow_llm_provider.hooks.compat import AirflowFailException, AirflowRescheduleException
from airflow_llm_provider.testing.scripted_client import Delayed, ScriptedCall, ScriptedClient
from airflow_llm_provider.xcom import ShardState

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ScriptedClient]:
    """Give the next shards a client with this script."""

    def use(*arguments: Any, **options: Any) -> ScriptedClient:
        client = ScriptedClient(*arguments, **options)
        monkeypatch.setattr(LLMHook, "get_client", lambda _hook, concurrency: client)
        return client

    return use


def operator(shard: Any, **changes: Any) -> CompleteShardOperator:
    return CompleteShardOperator(**({"task_id": "complete", "shard": shard, "max_attempts": 1} | changes))


def asked(client: ScriptedClient) -> list[str]:
    return [call.body["messages"][-1]["content"].removeprefix("Ticket: ") for call in client.calls]


class TestExecute:
    def test_returns_the_state_of_the_shard(self, night: Any, script: Any) -> None:
        shard = night.split()[0]
        client = script()
        state = ShardState.from_json(operator(shard).execute(night.context))
        assert (state.status, dict(state.rows_by_status)) == ("success", {"success": 2})
        assert state.requests == 2
        assert state.shard.to_json() == shard
        assert asked(client) == ["printer on fire", "no invoice"]
        assert client.closed

    def test_the_state_has_one_key_for_monitors_however_it_ends(self, night: Any, script: Any) -> None:
        shard = night.split()[0]
        script()
        returned = operator(shard).execute(night.context)
        assert night.ti.xcoms["shard_state"] == json.loads(json.dumps(returned))

    def test_a_push_that_airflow_refuses_does_not_fail_the_shard(self, night: Any, script: Any) -> None:
        shard = night.split()[0]
        script()
        night.ti.push_error = RuntimeError("410 gone: the task was cleared")
        assert operator(shard).execute(night.context)["status"] == "success"

    def test_a_second_try_asks_nothing(self, night: Any, script: Any) -> None:
        shard = night.split()[0]
        script()
        operator(shard).execute(night.context)
        again = script()
        state = ShardState.from_json(operator(shard).execute(night.context))
        assert (state.requests, state.reused) == (0, 2)
        assert again.calls == []

    def test_asks_no_more_at_a_time_than_concurrency(self, night: Any, script: Any) -> None:
        night.write(*(f"ticket {i}" for i in range(12)))
        client = script(latency=0.001)
        operator(night.split(max_rows_per_shard=None)[0], concurrency=3).execute(night.context)
        assert client.max_in_flight == 3

    def test_A9_a_reference_that_is_none_says_what_it_expected(self, night: Any) -> None:
        with pytest.raises(AirflowFailException, match="a shard reference from the split task"):
            operator(None).execute(night.context)


class TestFailure:
    def fail(self, night: Any, shard: Any, kind: type[BaseException], **changes: Any) -> ShardState:
        with pytest.raises(kind) as caught:
            operator(shard, **changes).execute(night.context)
        self.text = "".join(traceback.format_exception(caught.value))
        return ShardState.from_json(night.ti.xcoms["shard_state"])

    @pytest.mark.parametrize(
        ("failure", "code"),
        [
            (FailureKind.AUTHENTICATION, "http_401"),
            (FailureKind.QUOTA, "insufficient_quota"),
            (FailureKind.CONFIGURATION, "model_not_found"),
        ],
    )
    def test_B9_what_no_retry_mends_is_not_retried(
        self, night: Any, script: Any, failure: FailureKind, code: str
    ) -> None:
        shard = night.split(max_rows_per_shard=None)[0]
        client = script(then=CallError(failure, code, "the endpoint said no"))
        state = self.fail(night, shard, AirflowFailException, concurrency=1)
        assert state.status == "failed"
        assert len(client.calls) == 1
        assert state.message

    def test_what_may_pass_is_left_to_airflows_retries(self, night: Any, script: Any) -> None:
        shard = night.split()[0]
        script(then=CallError(FailureKind.OVERLOADED, "http_503", "busy"))
        state = self.fail(night, shard, LLMRetryableError)
        assert state.errors == {"http_503": 2}

    def test_a_long_wait_gives_the_slots_back(self, night: Any, script: Any) -> None:
        night.write("one", "two", "three")
        shard = night.split(max_rows_per_shard=None)[0]
        script(["ok"], then=CallError(FailureKind.RATE_LIMITED, "http_429", "tomorrow", retry_after=7200))
        state = self.fail(night, shard, AirflowRescheduleException, concurrency=1)
        assert dict(state.rows_by_status) == {"success": 1, "pending": 2}
        client = script()
        operator(shard, concurrency=1).execute(night.context)
        assert asked(client) == ["two", "three"]

    def test_a_threshold_that_no_further_try_meets_is_not_retried(self, night: Any, script: Any) -> None:
        shard = night.split()[0]
        script(["", "ok"])
        state = self.fail(night, shard, AirflowFailException, failure_threshold=0.1)
        assert dict(state.rows_by_status) == {"empty": 1, "success": 1}

    def test_a_threshold_that_a_further_try_may_meet_is_retried(self, night: Any, script: Any) -> None:
        shard = night.split()[0]
        script([CallError(FailureKind.OVERLOADED, "http_503", "busy")])
        self.fail(night, shard, LLMFailureThresholdError, failure_threshold=0.1, concurrency=1)

    def test_A5_the_next_try_asks_only_for_the_rest(self, night: Any, script: Any) -> None:
        night.write("one", "two", "three", "four")
        shard = night.split(max_rows_per_shard=None)[0]
        script(["ok", "ok"], then=CallError(FailureKind.AUTHENTICATION, "http_401", "no"))
        self.fail(night, shard, AirflowFailException, concurrency=1)
        night.ti.xcoms.clear()
        client = script()
        state = ShardState.from_json(operator(shard, concurrency=1).execute(night.context))
        assert (state.reused, state.requests) == (2, 2)
        assert asked(client) == ["three", "four"]

    def test_no_row_and_no_secret_is_in_the_traceback(
        self, night: Any, script: Any, monkeypatch: Any
    ) -> None:
        monkeypatch.setenv(
            "AIRFLOW_CONN_LLM_DEFAULT", '{"conn_type": "llm", "password": "sk-secret-0123456789"}'
        )
        night.write("SECRET-ROW")
        shard = night.split()[0]
        script(then=CallError(FailureKind.CONFIGURATION, "unsupported_value", "temperature is not supported"))
        self.fail(night, shard, AirflowFailException)
        assert "SECRET-ROW" not in self.text
        assert "sk-secret" not in self.text

    def test_a_push_that_airflow_refuses_does_not_hide_the_error(self, night: Any, script: Any) -> None:
        shard = night.split()[0]
        script(then=CallError(FailureKind.QUOTA, "insufficient_quota", "no credit"))
        night.ti.push_error = RuntimeError("410 gone: the task was cleared")
        with pytest.raises(AirflowFailException):
            operator(shard).execute(night.context)

    def test_B8_do_xcom_push_false_is_honoured(self, night: Any, script: Any) -> None:
        shard = night.split()[0]
        night.ti.xcoms.clear()
        script(then=CallError(FailureKind.QUOTA, "insufficient_quota", "no credit"))
        with pytest.raises(AirflowFailException):
            operator(shard, do_xcom_push=False).execute(night.context)
        assert night.ti.xcoms == {}


class TestBudget:
    def test_B12_is_not_retried_and_goes_on_once_it_is_raised(self, night: Any, script: Any) -> None:
        night.write("one", "two", "three", "four")
        shard = night.split(max_rows_per_shard=None)[0]
        script()
        with pytest.raises(AirflowFailException, match="budget is used up: .*max_tokens_total 40"):
            operator(shard, concurrency=1, max_tokens_total="40").execute(night.context)
        state = ShardState.from_json(night.ti.xcoms["shard_state"])
        assert 0 < state.rows_by_status["success"] < 4
        client = script()
        operator(shard, concurrency=1, max_tokens_total=1000).execute(night.context)
        assert len(client.calls) == 4 - state.rows_by_status["success"]

    def test_money_without_a_price_sends_nothing(self, night: Any, script: Any) -> None:
        client = script()
        with pytest.raises(AirflowFailException, match="price of gpt-4o-mini"):
            operator(night.split()[0], max_cost_usd=1).execute(night.context)
        assert client.calls == []


class TestSeveralConnections:
    @pytest.fixture(autouse=True)
    def connections(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("FIRST", "SECOND"):
            monkeypatch.setenv(
                f"AIRFLOW_CONN_{name}", '{"conn_type": "llm", "host": "http://127.0.0.1:1/v1"}'
            )

    def test_C20_take_turns_by_weight_and_stand_on_the_rows(
        self, night: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        night.write(*(f"ticket {i}" for i in range(8)))
        shard = night.split(max_rows_per_shard=None)[0]
        clients = {"first": ScriptedClient(), "second": ScriptedClient()}
        monkeypatch.setattr(LLMHook, "get_client", lambda hook, concurrency: clients[hook.conn_id])
        operator(shard, conn_ids={"first": 3, "second": 1}, concurrency=1).execute(night.context)
        assert {name: len(client.calls) for name, client in clients.items()} == {"first": 6, "second": 2}
        MergeShardsOperator(task_id="merge", plan=night.plan).execute(night.context)
        answered = read_results(str(night.destination)).column("llm_conn_id").to_pylist()
        assert sorted(answered) == ["first"] * 6 + ["second"] * 2

    def test_a_connection_that_does_not_exist_sends_nothing(self, night: Any, script: Any) -> None:
        client = script()
        with pytest.raises(AirflowFailException, match="connection 'third' does not exist"):
            operator(night.split()[0], conn_ids=["first", "third"]).execute(night.context)
        assert client.calls == []

    def test_duplicates_are_asked_once_when_told_so(self, night: Any, script: Any) -> None:
        night.write("same", "same", "other")
        shard = night.split(max_rows_per_shard=None)[0]
        client = script()
        state = ShardState.from_json(operator(shard, deduplicate="True").execute(night.context))
        assert sorted(asked(client)) == ["other", "same"]
        assert dict(state.rows_by_status) == {"success": 3}


class TestInterruption:
    def test_A27_a_kill_ends_the_task_and_keeps_the_answers(self, night: Any, script: Any) -> None:
        night.write("one", "two", "three", "four")
        shard = night.split(max_rows_per_shard=None)[0]
        task = operator(shard, concurrency=1)

        def respond(call: ScriptedCall) -> Any:
            if call.number == 2:
                task.on_kill()
                return Delayed(answer="late", seconds=30)
            return "ok"

        script(respond)
        with pytest.raises(LLMRetryableError, match="Airflow ended the task"):
            task.execute(night.context)
        state = ShardState.from_json(night.ti.xcoms["shard_state"])
        assert state.status == "interrupted"
        assert dict(state.rows_by_status) == {"success": 2, "pending": 2}
        client = script()
        operator(shard, concurrency=1).execute(night.context)
        assert asked(client) == ["three", "four"]

    def test_a_kill_before_the_first_request_sends_none(self, night: Any, script: Any) -> None:
        shard = night.split()[0]
        client = script()
        task = operator(shard)
        task.on_kill()
        with pytest.raises(LLMRetryableError):
            task.execute(night.context)
        assert client.calls == []

    def test_execution_timeout_keeps_the_answers(self, night: Any, script: Any) -> None:
        night.write("one", "two", "three")
        shard = night.split(max_rows_per_shard=None)[0]
        script(["ok"], then=Delayed(answer="never", seconds=50))
        with pytest.raises(BaseException, match="Timeout") as caught, TimeoutPosix(0.3):
            operator(shard, concurrency=1).execute(night.context)
        assert type(caught.value).__name__ == "AirflowTaskTimeout"
        state = ShardState.from_json(night.ti.xcoms["shard_state"])
        assert dict(state.rows_by_status) == {"success": 1, "pending": 2}
        client = script()
        operator(shard, concurrency=1).execute(night.context)
        assert asked(client) == ["two", "three"]


class TestDefinition:
    def test_a_pool_slot_is_one_request_in_flight(self) -> None:
        assert operator({}, concurrency=7).pool_slots == 7
        assert operator({}, concurrency=7, pool_slots=1).pool_slots == 1

    def test_the_scheduler_knows_slots_and_label_of_the_mapped_task(self) -> None:
        with DAG("nightly", schedule=None):
            mapped = CompleteShardOperator.partial(task_id="complete", concurrency=5).expand(shard=[{}])
            text = CompleteShardOperator.partial(task_id="text", concurrency="6").expand(shard=[{}])
            chosen = CompleteShardOperator.partial(
                task_id="other", pool_slots=2, map_index_template="x"
            ).expand(shard=[{}])
        assert (mapped.pool_slots, mapped.map_index_template) == (5, CompleteShardOperator.map_index_label)
        assert text.pool_slots == 6
        assert (chosen.pool_slots, chosen.map_index_template) == (2, "x")

    def test_A17_the_label_needs_nothing_that_the_run_sets(self, night: Any) -> None:
        shard = night.split()[1]
        task = operator(shard)
        label = task.get_template_env().from_string(CompleteShardOperator.map_index_label).render(task=task)
        assert label == shard["label"]
        assert label.startswith("shard 0001 · rows 2-3 · ")

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"concurrency": 0}, "concurrency is 0"),
            ({"timeout": 0}, "timeout is 0"),
            ({"max_attempts": 0}, "max_attempts is 0"),
            ({"failure_threshold": 2}, "failure_threshold is 2"),
            ({"conn_id": None}, "conn_id is None"),
            ({"conn_ids": "a"}, "conn_ids is 'a'"),
            ({"conn_id": "a", "conn_ids": ["b"]}, "give one of them"),
            ({"max_cost_usd": -1}, "max_cost_usd is -1"),
        ],
    )
    def test_literals_are_checked_when_the_dag_is_parsed(self, changes: dict[str, Any], message: str) -> None:
        with pytest.raises(LLMInputError, match=message):
            operator({}, **changes)
        with pytest.raises(LLMInputError, match=message):
            CompleteShardOperator.partial(task_id="complete", **changes)

    def test_an_output_given_without_expand_says_so(self, night: Any) -> None:
        with pytest.raises(AirflowFailException, match="a shard reference"):
            operator(XComArg(night.splitter())).execute(night.context)
