"""The endpoint refuses the account: what no retry mends is not retried."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_llm_provider.testing.scripted_server import Rule
from tests.system.stage import API_KEY, SYSTEM, asked, leaks, rows

if TYPE_CHECKING:
    from airflow_llm_provider.local.rest import TaskInstance
    from airflow_llm_provider.testing.scripted_server import RecordedRequest
    from airflow_llm_provider.xcom import ShardState
    from tests.system.stage import Run, Stage

pytestmark = SYSTEM

SHARDS = (rows(0, 1, 2), rows(3, 4, 5))

LOGS = ("log 1 of ask.complete[0]", "log 1 of ask.complete[1]")


@dataclass(frozen=True, kw_only=True)
class Facts:
    run: Run
    ended: str
    tasks: dict[tuple[str, int], TaskInstance]
    requests: list[RecordedRequest]
    states: list[ShardState]
    traces: dict[str, str]


def refused(stage: Stage, *, status: int, **error: Any) -> Facts:
    stage.write([text for shard in SHARDS for text in shard])
    stage.server.script(Rule(status=status, body={"error": {"param": None, **error}}))
    run = stage.run("careful", rows_per_shard=3)
    return Facts(
        run=run,
        ended=run.end(),
        tasks=run.tasks(),
        requests=stage.server.requests,
        states=[run.shard_state(index, failed=True) for index in (0, 1)],
        traces=run.traces(),
    )


class FailsAtOnce:
    """What holds for every such refusal."""

    def test_B9_airflow_tries_nothing_again(self, facts: Facts) -> None:
        assert facts.ended == "failed"
        shards = [ti for (task, _), ti in facts.tasks.items() if task == "complete"]
        assert [(ti.state, ti.try_number) for ti in shards] == [("failed", 1), ("failed", 1)]
        assert facts.tasks["merge", -1].state == "upstream_failed"

    def test_B9_a_shard_sends_one_request_at_most(self, facts: Facts) -> None:
        for shard in SHARDS:
            assert len(set(asked(facts.requests)) & set(shard)) <= 1
        assert 1 <= len(facts.requests) <= 2

    def test_no_row_text_and_no_key_can_be_read_in_airflow(self, facts: Facts) -> None:
        assert leaks(facts.traces) == []

    def test_its_state_sums_and_nothing_was_answered(self, facts: Facts) -> None:
        for state in facts.states:
            assert state.status == "failed"
            assert sum(state.rows_by_status.values()) == state.shard.rows == 3
            assert "success" not in state.rows_by_status


def wrong_key(stage: Stage) -> Facts:
    return refused(
        stage, status=401, message=f"Incorrect API key provided: {API_KEY}.", code="invalid_api_key"
    )


class TestWrongKey(FailsAtOnce):
    scene = staticmethod(wrong_key)

    def test_the_log_says_what_to_do(self, facts: Facts) -> None:
        for log in (facts.traces[name] for name in LOGS):
            assert "does not accept the key" in log
            assert "Check the key, the organisation and the project of the connection" in log


def account_without_credit(stage: Stage) -> Facts:
    return refused(
        stage,
        status=429,
        message="You exceeded your current quota, please check your plan and billing details.",
        code="insufficient_quota",
        type="insufficient_quota",
    )


class TestAccountWithoutCredit(FailsAtOnce):
    scene = staticmethod(account_without_credit)

    def test_C1_the_log_says_what_to_do(self, facts: Facts) -> None:
        for log in (facts.traces[name] for name in LOGS):
            assert "no credit left" in log
            assert "billing settings; waiting does not help" in log
