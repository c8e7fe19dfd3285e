"""What a whole run may spend, over its shards and tries."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from pathlib import Path
from unittest.mock import AsyncMock, Mock

import pytest

from airflow_llm_provider.dataset.outcomes.results import ShardResults
from airflow_llm_provider.engine.budget.book import BookAwayError, Holder
from airflow_llm_provider.engine.budget.gate import BudgetGate
from airflow_llm_provider.engine.budget.spent import Spent
from airflow_llm_provider.engine.call import Reply
from airflow_llm_provider.errors import LLMBudgetError, LLMInputError, LLMRetryableError, LLMTerminalError
from airflow_llm_provider.jobs import SplitOptions
from airflow_llm_provider.limiters.books.file import FileBook
from airflow_llm_provider.spec import CompletionSpec

TEXTS = [f"row {n}" for n in range(40)]


@pytest.fixture
def shared(tmp_path):
    return {"limiter_url": f"file://{tmp_path}/limits", "concurrency": 2}


@pytest.fixture
def small(job):
    """Requests that take 15 tokens and may take some 25."""
    job.spec = CompletionSpec(model="gpt-4o-mini", prompt="{{ text }}", temperature=0, max_output_tokens=10)
    job.write(TEXTS)
    return job


class TestTokens:
    def test_B7_hold_for_the_run_and_not_for_each_shard(self, small, shared):
        with pytest.raises(LLMBudgetError, match=r"max_tokens_total 450") as stopped:
            small.run(max_rows_per_shard=10, complete=shared | {"max_tokens_total": 450})
        assert isinstance(stopped.value, LLMTerminalError)
        assert 20 <= small.requests() <= 30
        assert small.last_run.state.rows_by_status["pending"] > 0

    def test_I7_go_on_after_they_were_raised_and_paid_answers_count(self, small, shared):
        with pytest.raises(LLMBudgetError):
            small.run(max_rows_per_shard=10, complete=shared | {"max_tokens_total": 450})
        paid = small.requests()
        with pytest.raises(LLMBudgetError):
            small.run(max_rows_per_shard=10, complete=shared | {"max_tokens_total": 450})
        assert small.requests() <= 1
        small.run(max_rows_per_shard=10, complete=shared | {"max_tokens_total": 700})
        assert 40 - 1 <= paid + small.requests() <= 40

    def test_I7_a_lost_account_book_is_made_good_from_the_stored_answers(self, small, shared, tmp_path):
        with pytest.raises(LLMBudgetError):
            small.run(max_rows_per_shard=10, complete=shared | {"max_tokens_total": 450})
        small.requests()
        [book] = (tmp_path / "limits").glob("*.book")
        book.unlink()
        with pytest.raises(LLMBudgetError):
            small.run(max_rows_per_shard=10, complete=shared | {"max_tokens_total": 450})
        assert small.requests() <= 1

    @pytest.mark.parametrize("cap", [{"max_tokens_total": 450}, {"max_cost_usd": 450 * 0.6 / 1e6}])
    def test_I7_answers_whose_usage_nobody_told_count_as_the_most_in_the_next_run_too(
        self, small, shared, cap, tmp_path
    ):
        small.answer = lambda _: Reply(text="yes", finish_reason="stop", model="gpt-4o-mini", usage=None)
        for most in (39, 1, 1):
            with pytest.raises(LLMBudgetError):
                small.run(max_rows_per_shard=10, complete=shared | cap)
            [book] = (tmp_path / "limits").glob("*.book")
            book.unlink()  # a split of the same rows begins a new one, too
            assert small.requests() <= most

    def test_I7_such_an_answer_counts_its_own_prompt_however_many_rows_of_its_shard_are_blank(
        self, small, shared, tmp_path
    ):
        small.answer = lambda _: Reply(text="yes", finish_reason="stop", model="gpt-4o-mini", usage=None)
        small.write([text for n in (1, 2) for text in (f"row {n} " * 50, *[""] * 19)])
        first, second = small.split(max_rows_per_shard=20).references
        small.shard_run(first, **shared, max_tokens_total=10_000).run()
        [book] = (tmp_path / "limits").glob("*.book")
        paid = asyncio.run(FileBook(book).raise_to(Spent())).spent
        book.unlink()
        # It finds the book lost, and counts anew what the first has stored.
        small.shard_run(second, **shared, max_tokens_total=10_000).run()
        assert paid.tokens > 150
        assert asyncio.run(FileBook(book).raise_to(Spent())).spent.tokens == 2 * paid.tokens

    def test_copies_of_an_answer_whose_usage_nobody_told_count_nothing(self, small, shared):
        small.answer = lambda _: Reply(text="yes", finish_reason="stop", model="gpt-4o-mini", usage=None)
        small.write(["the same"] * 30 + ["other"])
        for _ in range(2):
            small.run(complete=shared | {"max_tokens_total": 100})

    def test_begin_anew_when_the_run_starts_over(self, small, shared):
        for _ in range(3):
            small.clock.jump(60.0)
            summary = small.run(start_over=True, complete=shared | {"max_tokens_total": 700})
            assert summary.succeeded == 40

    def test_another_destination_has_a_budget_of_its_own(self, small, shared, tmp_path):
        small.run(complete=shared | {"max_tokens_total": 700})
        small.folder = tmp_path / "second"
        small.folder.mkdir()
        small.write(TEXTS)
        assert small.run(complete=shared | {"max_tokens_total": 700}).succeeded == 40

    def test_a_warning_is_logged_at_four_fifths(self, small, shared, caplog):
        caplog.set_level(logging.WARNING)
        small.run(complete=shared | {"max_tokens_total": 640})
        warnings = [line for line in caplog.messages if "of the run's budget is used" in line]
        assert 1 <= len(warnings) <= 2


class TestKilledTask:
    def test_B7_what_it_had_reserved_comes_free_with_its_next_try(self, small, shared, monkeypatch):
        def die(call):
            if len(small.calls) > 8:
                raise KeyboardInterrupt
            return "yes"

        small.answer = die
        [reference] = small.split().references
        with monkeypatch.context() as killed:
            # Nobody is left to tell how the last requests ended.
            killed.setattr(BudgetGate, "settle", lambda *_, **__: None)
            killed.setattr(BudgetGate, "aclose", AsyncMock())
            with pytest.raises(KeyboardInterrupt):
                small.shard_run(reference, **shared, max_tokens_total=640).run()
        paid = small.requests()
        small.answer = None
        # With the reservations of the killed try still counted this would be too little by far.
        state = small.shard_run(reference, **shared, max_tokens_total=640).run()
        assert state.rows_by_status == {"success": 40}
        assert paid + small.requests() <= 40 + shared["concurrency"]

    def test_that_had_every_answer_leaves_nothing_reserved_after_its_next_try(
        self, small, shared, monkeypatch, tmp_path
    ):
        budget = shared | {"max_tokens_total": 10_000}
        first, _ = small.split(max_rows_per_shard=20).references
        with monkeypatch.context() as killed:
            killed.setattr(BudgetGate, "settle", lambda *_, **__: None)
            killed.setattr(BudgetGate, "aclose", AsyncMock())
            killed.setattr(ShardResults, "write", Mock(side_effect=KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                small.shard_run(first, **budget).run()
        [book] = (tmp_path / "limits").glob("*.book")
        assert asyncio.run(FileBook(book).open(Holder(name="reader"), {})).reserved.tokens > 0
        small.requests()

        assert small.shard_run(first, **budget).run().rows_by_status == {"success": 20}

        assert small.requests() == 0
        assert asyncio.run(FileBook(book).open(Holder(name="reader"), {})).reserved.tokens == 0


class TestBookThatIsAwayAtTheEnd:
    @pytest.fixture
    def away(self, small, monkeypatch):
        """The account book does not answer after the last request has gone out."""
        state = FileBook.state

        async def state_while_there(self, *arguments, **more):
            if len(small.calls) >= len(TEXTS):
                raise BookAwayError("The account book cannot be reached")
            return await state(self, *arguments, **more)

        with monkeypatch.context() as patch:
            patch.setattr(FileBook, "state", state_while_there)
            yield patch

    def test_fails_no_shard_that_has_every_answer_and_what_it_could_not_tell_stays_reserved(
        self, small, shared, away, caplog, tmp_path
    ):
        [reference] = small.split().references
        state = small.shard_run(reference, **shared, max_tokens_total=10_000).run()
        assert state.rows_by_status == {"success": 40}
        [warning] = [line for line in caplog.messages if "cannot be reached" in line]
        assert "15 tokens that were spent last could not be told to the account book" in warning
        [book] = (tmp_path / "limits").glob("*.book")
        balance = asyncio.run(FileBook(book).raise_to(Spent()))
        assert balance.spent.tokens == 39 * 15
        assert balance.total.tokens >= 40 * 15

    @pytest.mark.parametrize(
        "fault",
        [
            (lambda book: os.truncate(book, 20), "is damaged.*Delete it to count anew"),
            # As on a full disk: nothing takes the place of the old book.
            (lambda book: book.with_suffix(".book-new").mkdir(), "cannot be used.*make room on its disk"),
        ],
    )
    def test_fails_none_either_when_it_is_a_file_that_nobody_can_read_or_write(
        self, small, shared, caplog, tmp_path, fault
    ):
        ruin, reason = fault

        def answer(_):
            if len(small.calls) == len(TEXTS):
                ruin(next((tmp_path / "limits").glob("*.book")))
            return "yes"

        small.answer = answer
        [reference] = small.split().references
        state = small.shard_run(reference, **shared, max_tokens_total=10_000).run()
        assert state.rows_by_status == {"success": 40}
        [warning] = [line for line in caplog.messages if "could not be told to the account book" in line]
        assert re.search(reason, warning)

    def test_of_a_try_that_was_killed_with_every_answer_fails_not_its_next_one_either(
        self, small, shared, monkeypatch, tmp_path
    ):
        [reference] = small.split().references
        with monkeypatch.context() as killed:
            killed.setattr(ShardResults, "write", Mock(side_effect=KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                small.shard_run(reference, **shared, max_tokens_total=10_000).run()
        [book] = (tmp_path / "limits").glob("*.book")
        os.truncate(book, 20)
        small.requests()
        state = small.shard_run(reference, **shared, max_tokens_total=10_000).run()
        assert (state.rows_by_status, small.requests()) == ({"success": 40}, 0)

    def test_is_told_by_the_next_try_of_one_that_has_not(self, small, shared, away, tmp_path):
        [reference] = small.split().references
        budget = shared | {"max_tokens_total": 10_000}
        with pytest.MonkeyPatch.context() as failing:
            failing.setattr(
                ShardResults, "write", Mock(side_effect=LLMRetryableError("disk", retry_after=1.0))
            )
            with pytest.raises(LLMRetryableError, match="disk"):
                small.shard_run(reference, **budget).run()
        away.undo()
        small.requests()
        assert small.shard_run(reference, **budget).run().rows_by_status == {"success": 40}
        assert small.requests() == 0
        [book] = (tmp_path / "limits").glob("*.book")
        balance = asyncio.run(FileBook(book).raise_to(Spent()))
        assert (balance.spent.tokens, balance.reserved.tokens) == (40 * 15, 0)


class TestMoney:
    def test_stops_before_it_is_exceeded(self, small, shared):
        cap = 20 * (10 * 0.15 + 5 * 0.6) / 1e6
        with pytest.raises(LLMBudgetError, match="max_cost_usd"):
            small.run(complete=shared | {"max_cost_usd": cap})
        assert 10 <= small.requests() <= 20
        assert small.last_run.state.cost_usd <= cap

    def test_without_a_price_is_refused_before_anything_is_written(self, small, tmp_path):
        small.spec = CompletionSpec(model="house-model", prompt="{{ text }}")
        with pytest.raises(LLMInputError, match="price of house-model.*not known.*max_tokens_total"):
            small.split(max_cost_usd=1.0)
        assert not Path(small.destination).exists()

    @pytest.mark.parametrize("fallback", [None, "house-model"])
    def test_without_a_price_is_refused_before_anything_is_sent(self, small, shared, fallback):
        if fallback is None:
            small.spec = CompletionSpec(model="house-model", prompt="{{ text }}")
        with pytest.raises(LLMInputError, match="price of house-model"):
            small.run(complete=shared | {"max_cost_usd": 1.0, "fallback_model": fallback})
        assert small.requests() == 0

    @pytest.mark.parametrize("cap", [0, -1, True, "1", float("nan")])
    def test_is_a_sum(self, cap):
        with pytest.raises(LLMInputError, match="max_cost_usd"):
            SplitOptions(max_cost_usd=cap)


class TestFallback:
    def test_answers_what_the_first_can_no_longer_afford_and_is_not_asked_again(self, small, shared):
        small.spec = CompletionSpec(model="gpt-4o", prompt="{{ text }}", temperature=0, max_output_tokens=10)
        models = []

        def answer(call):
            from airflow_llm_provider.testing.scripted_client import reply

            models.append(call.body["model"])
            return reply("yes", model=call.body["model"])

        small.answer = answer
        cap = 32 * (10 * 2.5 + 5 * 10) / 1e6
        complete = shared | {"max_cost_usd": cap, "fallback_model": "gpt-4o-mini"}
        assert small.run(complete=complete).succeeded == 40
        assert 20 <= models.count("gpt-4o") <= 32
        assert [row["llm_model"] for row in small.output()].count("gpt-4o-mini") == models.count(
            "gpt-4o-mini"
        )
        small.requests()
        assert small.run(complete=complete).succeeded == 40
        assert small.requests() == 0

    def test_is_another_model(self, small, shared):
        with pytest.raises(LLMInputError, match="the model itself"):
            small.run(complete=shared | {"fallback_model": "gpt-4o-mini"})
