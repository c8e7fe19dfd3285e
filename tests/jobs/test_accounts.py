"""Several accounts at the level of jobs: turns, limits, what is on the rows, what is closed."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llm_provider.engine.call import CallError, FailureKind
from airflow_llm_provider.errors import (
    LLMAuthenticationError,
    LLMConfigurationError,
    LLMError,
    LLMInputError,
    LLMQuotaError,
    LLMRetryableError,
)
from airflow_llm_provider.jobs import Account, CompleteOptions, OpenAccounts, ShardRun, merge, run_dataset
from airflow_llm_provider.spec import CompletionSpec
from airflow_llm_provider.testing.clock import ManualClock
from airflow_llm_provider.testing.scripted_client import ScriptedClient

TEXTS = [f"row {n}" for n in range(60)]
DOWN = CallError(FailureKind.OVERLOADED, "http_503", "down", status_code=503)


class Several:
    """A job on several accounts in virtual time."""

    def __init__(self, job, tmp_path):
        self.job, self.folder = job, tmp_path
        self.clients = {}

    def account(self, name, script=(), **options):
        def make(concurrency):
            client = ScriptedClient(script, clock=self.job.clock, latency=0.1)
            self.clients[name] = client
            client.concurrency = concurrency
            return client

        return Account(**{"name": name, "client": make, "key": f"key-{name}", **options})

    def shard(self, accounts, reference, **options):
        self.run = ShardRun(
            reference,
            accounts=accounts,
            options=CompleteOptions(
                **{"concurrency": 4, "limiter_url": f"file://{self.folder}/limits", **options}
            ),
            clock=self.job.clock,
            rng=random.Random(3),
        )
        return self.run.run()

    def go(self, *accounts, split=None, **options):
        result = self.job.split(**(split or {}))
        states = [self.shard(accounts, reference, **options).to_json() for reference in result.references]
        return merge(result.plan_uri, states=states, clock=self.job.clock)

    def rows_by_account(self):
        return Counter(row["llm_conn_id"] for row in self.job.output())


@pytest.fixture
def several(job, tmp_path):
    job.write(TEXTS)
    return Several(job, tmp_path)


class TestAccounts:
    def test_take_turns_by_weight_and_stand_on_the_rows(self, several):
        summary = several.go(several.account("big", weight=2), several.account("small"))
        assert summary.succeeded == 60
        assert several.rows_by_account() == {"big": 40, "small": 20}

    def test_clients_are_made_for_the_concurrency_and_closed(self, several):
        several.go(several.account("a"), several.account("b"), concurrency=7)
        assert [client.concurrency for client in several.clients.values()] == [7, 7]
        assert all(client.closed for client in several.clients.values())

    def test_what_is_open_already_stays_open(self, several):
        accounts = OpenAccounts([several.account("a")], concurrency=4, limiter_url="memory://")
        [reference] = several.job.split().references
        several.shard(accounts, reference)
        assert not several.clients["a"].closed
        asyncio.run(accounts.aclose())
        assert several.clients["a"].closed

    def test_a_finished_shard_opens_nothing(self, several):
        several.go(several.account("a"))
        several.clients.clear()
        assert several.go(several.account("a")).requests == 0
        assert several.clients == {}
        assert several.rows_by_account() == {"a": 60}

    @pytest.mark.parametrize("names", [(), ("a", "a"), ("a", "")])
    def test_their_names_tell_them_apart(self, several, names):
        with pytest.raises(LLMInputError, match="accounts are named"):
            OpenAccounts([several.account(name) for name in names], concurrency=1)

    def test_a_secret_stays_out_of_their_text(self, several):
        account = several.account("a", key="secret", limiter_url="redis://:secret@host/0")
        assert "secret" not in repr(account)


class TestLimits:
    def test_C5_A16_are_kept_by_each_account_and_by_all_shards(self, several):
        limits = {"*": {"requests_per_minute": 60}}
        summary = several.go(
            several.account("a", limits=limits),
            several.account("b", limits={"gpt-4o-mini": {"requests_per_minute": 120}}),
            split={"max_rows_per_shard": 15},
        )
        assert (summary.succeeded, summary.retries) == (60, 0)
        assert 18 <= several.job.clock.monotonic() <= 40

    def test_time_spent_waiting_is_in_the_state_and_in_the_log(self, several, caplog):
        caplog.set_level(logging.INFO)
        several.go(several.account("a", limits={"requests_per_minute": 60}))
        state = several.run.state
        assert state.waited_seconds > state.seconds > 50
        assert any("held back by the account's limits" in line for line in caplog.messages)

    def test_C6_a_request_beyond_the_limit_ends_its_row_alone(self, several):
        several.job.write(["short", "long " * 400])
        several.job.spec = CompletionSpec(model="gpt-4o-mini", prompt="{{ text }}", max_output_tokens=10)
        summary = several.go(several.account("a", limits={"tokens_per_minute": 300}))
        assert summary.rows_by_status == {"success": 1, "request_too_large": 1}

    def test_a_wait_beyond_the_bound_gives_the_task_back_and_says_when_to_return(self, several):
        late = CallError(FailureKind.RATE_LIMITED, "http_429", "no", status_code=429, retry_after=250.0)
        with pytest.raises(LLMRetryableError) as stopped:
            several.go(several.account("a", [late]), max_limit_wait=100.0)
        assert 240 <= stopped.value.retry_after <= 260
        state = several.run.state
        assert state.status == "failed"
        assert "longer than the 100 s that are waited for" in state.message
        assert state.rows_by_status["pending"] > 0


class TestHealth:
    def test_one_without_credit_is_left_out_and_told(self, several, caplog):
        empty = CallError(FailureKind.QUOTA, "insufficient_quota", "no", status_code=429)
        summary = several.go(several.account("a", lambda _: empty), several.account("b"))
        assert several.rows_by_account() == {"b": 60}
        assert summary.succeeded == 60
        [line] = [line for line in caplog.messages if "goes on without account a" in line]
        assert "billing" in line

    @pytest.mark.parametrize(
        ("status", "code"),
        [(404, "model_not_found"), (301, "redirected"), (400, "DeploymentNotFound"), (None, "tls")],
    )
    def test_one_that_knows_no_such_model_or_lies_elsewhere_is_left_out_and_told(
        self, several, caplog, status, code
    ):
        lost = CallError(FailureKind.CONFIGURATION, code, "no", status_code=status)
        summary = several.go(several.account("a", lambda _: lost), several.account("b"))
        assert several.rows_by_account() == {"b": 60}
        assert summary.succeeded == 60
        assert sum("goes on without account a" in line for line in caplog.messages) == 1

    def test_C18_a_refused_parameter_is_refused_everywhere(self, several):
        refused = CallError(FailureKind.CONFIGURATION, "unsupported_value", "no", status_code=400)
        with pytest.raises(LLMConfigurationError, match="Account a"):
            several.go(several.account("a", lambda _: refused), several.account("b"), concurrency=1)
        assert len(several.clients["a"].calls) == 1

    def test_when_all_are_refused_the_task_fails_for_good(self, several):
        wrong = CallError(FailureKind.AUTHENTICATION, "invalid_api_key", "no", status_code=401)
        with pytest.raises(LLMAuthenticationError, match="Account b"):
            several.go(several.account("a", lambda _: wrong), several.account("b", lambda _: wrong))
        assert several.run.state.rows_by_status == {"pending": 60}

    def test_C10_an_endpoint_that_stays_down_is_left_after_a_bounded_time(self, several, caplog):
        with pytest.raises(LLMRetryableError, match="max_outage"):
            several.go(several.account("a", lambda _: DOWN), max_outage=20.0)
        assert len(several.clients["a"].calls) <= 4 + 4 + 20
        assert several.job.clock.monotonic() <= 30
        assert sum("asking it once in a while" in line for line in caplog.messages) == 1

    def test_C10_one_that_comes_back_loses_no_row(self, several, caplog):
        clock = several.job.clock
        summary = several.go(several.account("a", lambda _: DOWN if 0.5 <= clock.monotonic() < 30 else "yes"))
        assert summary.rows_by_status == {"success": 60}
        assert len(several.clients["a"].calls) <= 60 + 8 + 31
        assert sum("answers again" in line for line in caplog.messages) == 1

    def test_a_fallback_model_stands_in_while_the_first_does_not_answer(self, several):
        def answer(call):
            return DOWN if call.body["model"] == "gpt-4o-mini" else "from the other"

        summary = several.go(several.account("a", answer), fallback_model="gpt-4o")
        assert summary.succeeded == 60
        assert {row["answer"] for row in several.job.output()} == {"from the other"}
        assert several.job.clock.monotonic() < 30


class TestRejectedAlike:
    def test_C18_a_bare_400_stops_the_shard_after_a_few_rows(self, several):
        bad = CallError(FailureKind.ROW, "http_400", "no", status_code=400)
        with pytest.raises(LLMConfigurationError, match="first 10 rows the same way"):
            several.go(several.account("a", lambda _: bad))
        assert len(several.clients["a"].calls) <= 10 + 4

    def test_not_when_rows_of_the_shard_have_answers_already(self, several):
        empty = CallError(FailureKind.QUOTA, "insufficient_quota", "no", status_code=429)
        with pytest.raises(LLMQuotaError):
            several.go(several.account("a", lambda call: "yes" if call.number < 5 else empty))
        several.job.clock.jump(1)  # or the halt would be of this very moment
        bad = CallError(FailureKind.ROW, "http_400", "no", status_code=400)
        summary = several.go(several.account("a", lambda _: bad))
        assert summary.rows_by_status["rejected"] >= 50


class TestEcho:
    def test_row_text_that_an_endpoint_repeats_reaches_nobody(self, job, scripted_server, caplog):
        from airflow_llm_provider.testing.server.rule import Rule

        secret = "card number 4111-1111-1111-1111"
        job.write([f"My {secret}"])
        scripted_server.script(
            Rule(
                status=404,
                body={"error": {"message": f"cannot route: My {secret}", "code": "model_not_found"}},
            )
        )
        caplog.set_level(0)
        with pytest.raises(LLMConfigurationError) as stopped:
            run_dataset(job.spec, job.source, job.destination, base_url=scripted_server.base_url)
        told = "".join(map(str, (caplog.text, stopped.value, stopped.value.__cause__)))
        assert "4111" not in told
        assert "model_not_found" in str(stopped.value)


class TestEveryRow:
    @settings(max_examples=12)
    @given(data=st.data())
    def test_ends_exactly_once_whatever_happens_on_the_way(self, job, tmp_path_factory, data):
        job.folder = folder = tmp_path_factory.mktemp("run")
        job.clock = ManualClock()
        rows = data.draw(st.integers(1, 30))
        job.write([f"row {n % data.draw(st.integers(1, 30))}" for n in range(rows)])
        several = Several(job, folder)
        wrong = CallError(FailureKind.AUTHENTICATION, "invalid_api_key", "no", status_code=401)
        busy = CallError(FailureKind.RATE_LIMITED, "http_429", "no", status_code=429, retry_after=5.0)
        script = st.lists(st.sampled_from([wrong, busy, DOWN, "yes", "yes", "yes"]), max_size=15)
        [reference] = job.split().references
        total, answered = data.draw(st.integers(50, 3000)), 0
        for _ in range(4):
            job.clock.jump(1)
            accounts = [
                several.account(name, data.draw(script)) for name in "ab"[: data.draw(st.integers(1, 2))]
            ]
            try:
                several.shard(accounts, reference, max_tokens_total=total, max_outage=20.0)
            except LLMError:
                total += 1500
            state = several.run.state
            assert sum(state.rows_by_status.values()) == rows
            assert state.reused >= answered
            answered = state.rows_by_status.get("success", 0)
        job.clock.jump(1)
        accounts = [several.account("a")]
        state = several.shard(accounts, reference, max_tokens_total=10**6)
        assert state.rows_by_status == {"success": rows}
