import fcntl
import os
import subprocess
import sys
import textwrap
import uuid

import pytest

from airflow_llm_provider.engine.book import Balance, BookAwayError, MemoryBook, Spent
from airflow_llm_provider.errors import LLMInputError, LLMStateError
from airflow_llm_provider.limiters.books import FileBook, RedisBook, book_from_url

LIMIT = Spent(tokens=1000, cost_usd=1.0)


class BookContract:
    """What every account book must do; ``self.open()`` opens the same book once more."""

    def test_adds_up_to_the_limit_and_not_beyond(self):
        book = self.open()
        first = Balance(reserved=Spent(tokens=900, cost_usd=0.5))
        assert book.reserve(first.reserved, limit=LIMIT) == (True, first)
        assert book.reserve(Spent(tokens=101), limit=LIMIT) == (False, first)
        assert book.reserve(Spent(cost_usd=0.6), limit=LIMIT) == (False, first)
        assert book.reserve(Spent(tokens=100, cost_usd=0.5), limit=LIMIT) == (True, Balance(reserved=LIMIT))

    def test_spent_and_reserved_together_are_limited(self):
        book = self.open()
        book.raise_to(Spent(tokens=400))
        assert book.reserve(Spent(tokens=500), limit=LIMIT)[0]
        assert not book.reserve(Spent(tokens=101), limit=LIMIT)[0]
        assert book.reserve(Spent(tokens=100), limit=LIMIT)[0]

    def test_is_shared_by_all_who_open_it(self):
        self.open().reserve(Spent(tokens=900), limit=LIMIT)
        assert self.open().reserve(Spent(tokens=101), limit=LIMIT)[0] is False

    def test_replaces_what_was_reserved_by_what_was_spent_and_never_owes(self):
        book = self.open()
        reserved, spent = Spent(tokens=500, cost_usd=0.5), Spent(tokens=100, cost_usd=0.125)
        book.reserve(reserved, limit=LIMIT)
        after = Balance(spent=spent, reserved=Spent(tokens=200, cost_usd=0.25))
        assert book.settle(Spent(tokens=300, cost_usd=0.25), spent) == after
        assert book.settle(reserved, Spent()) == Balance(spent=spent)

    def test_is_raised_to_what_is_known_and_never_lowered(self):
        book = self.open()
        assert book.raise_to(Spent(tokens=70, cost_usd=0.5)).spent == Spent(tokens=70, cost_usd=0.5)
        assert book.raise_to(Spent(tokens=10, cost_usd=0.75)).spent == Spent(tokens=70, cost_usd=0.75)

    def test_adds_large_numbers_exactly(self):
        book = self.open()
        book.raise_to(Spent(tokens=10**14))
        assert book.settle(Spent(), Spent(tokens=1)).spent == Spent(tokens=10**14 + 1)

    def test_what_a_holder_has_reserved_comes_free_together_and_nobody_elses(self):
        book = self.open()
        for holder, tokens in (("one", 100), ("two", 300), ("one", 200)):
            book.reserve(Spent(tokens=tokens, cost_usd=0.1), limit=LIMIT, holder=holder)
        book.settle(Spent(tokens=100, cost_usd=0.1), Spent(tokens=7), holder="one")
        freed = self.open().free("one")
        assert freed.spent == Spent(tokens=7)
        assert (freed.reserved.tokens, freed.reserved.cost_usd) == (300, pytest.approx(0.1))
        assert book.free("three") == freed
        assert book.settle(Spent(tokens=300, cost_usd=0.1), Spent(), holder="one") == freed
        assert book.settle(Spent(tokens=300, cost_usd=0.1), Spent(), holder="two") == Balance(
            spent=Spent(tokens=7)
        )

    def test_many_holders_come_and_go(self):
        book = self.open()
        for n in range(40):
            book.reserve(Spent(tokens=10), limit=LIMIT, holder=f"holder {n}")
        for n in range(39):
            book.free(f"holder {n}")
        assert self.open().raise_to(Spent()) == Balance(reserved=Spent(tokens=10))
        assert self.open().free("holder 39") == Balance()

    def test_money_without_a_limit(self):
        assert self.open().reserve(Spent(cost_usd=1e6), limit=Spent(tokens=1, cost_usd=float("inf")))[0]


class TestMemoryBook(BookContract):
    @pytest.fixture(autouse=True)
    def _book(self):
        book = MemoryBook()
        self.open = lambda: book


class TestFileBook(BookContract):
    @pytest.fixture(autouse=True)
    def _book(self, tmp_path):
        self.path = tmp_path / "new" / "run.book"
        self.open = lambda: FileBook(self.path)

    @pytest.mark.parametrize(
        "damage", [b"x", b"\0" * 32, b"\xff" * 32, b"llmbook1" + b"\1" * 24, b"llmbook3" + b"\1" * 99]
    )
    def test_a_damaged_one_is_an_error_and_not_nothing_spent(self, damage):
        book = self.open()
        self.path.write_bytes(damage)
        with pytest.raises(LLMStateError, match="damaged"):
            book.raise_to(Spent())

    def test_a_process_that_holds_its_lock_is_not_waited_for_without_end(self):
        book = self.open()
        with self.path.open("rb") as stopped:
            fcntl.flock(stopped, fcntl.LOCK_EX)
            with pytest.raises(BookAwayError, match="lock") as caught:
                book.raise_to(Spent())
        assert caught.value.unchanged
        assert book.raise_to(Spent(tokens=1)).spent.tokens == 1

    def test_one_that_cannot_be_opened_is_named(self):
        book = self.open()
        self.path.unlink()
        self.path.mkdir()
        with pytest.raises(LLMStateError, match=r"run\.book.*cannot be used"):
            book.raise_to(Spent())

    def test_old_ones_are_forgotten(self):
        old, recent = self.path.with_name("old.book"), self.path.with_name("recent.book")
        for path, age in ((old, 31), (recent, 29)):
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(b"")
            stamp = path.stat().st_mtime - age * 86_400
            os.utime(path, (stamp, stamp))
        self.open()
        assert (old.exists(), recent.exists()) == (False, True)

    def test_processes_that_write_at_the_same_time_lose_nothing(self):
        code = f"""
            from pathlib import Path
            from airflow_llm_provider.engine.book import Spent
            from airflow_llm_provider.limiters.books import FileBook
            book = FileBook(Path({str(self.path)!r}))
            for _ in range(200):
                book.reserve(Spent(tokens=3), limit=Spent(tokens=10**9, cost_usd=1.0))
        """
        writers = [subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)]) for _ in range(3)]
        assert [writer.wait(30) for writer in writers] == [0, 0, 0]
        assert self.open().raise_to(Spent()).reserved == Spent(tokens=1800)


class TestRedisBook(BookContract):
    @pytest.fixture(autouse=True)
    def _book(self, redis_url):
        name, opened = uuid.uuid4().hex, []

        def open_book():
            opened.append(RedisBook(redis_url, name))
            return opened[-1]

        self.open, self.name = open_book, name
        yield
        for book in opened:
            book.close()

    def test_is_kept_for_a_month(self, client):
        self.open().raise_to(Spent(tokens=1))
        (key,) = client.keys(f"*{self.name}*")
        assert 29 * 86_400 < client.ttl(key) <= 30 * 86_400

    def test_a_lost_redis_is_an_error_that_passes(self):
        book = RedisBook("redis://:geheim@127.0.0.1:9/0", "name")
        with pytest.raises(BookAwayError) as caught:
            book.raise_to(Spent())
        assert "geheim" not in str(caught.value)


class TestBookFromUrl:
    def test_opens_the_book_of_a_run(self, tmp_path, redis_url):
        assert isinstance(book_from_url("memory://", "run"), MemoryBook)
        assert isinstance(book_from_url(f"file://{tmp_path}", "run"), FileBook)
        book = book_from_url(redis_url, "run")
        assert isinstance(book, RedisBook)
        book.close()

    def test_runs_have_books_of_their_own(self, tmp_path):
        book_from_url(f"file://{tmp_path}", "one").raise_to(Spent(tokens=5))
        assert book_from_url(f"file://{tmp_path}", "two").raise_to(Spent()) == Balance()
        assert book_from_url(f"file://{tmp_path}", "one").raise_to(Spent()).spent == Spent(tokens=5)

    def test_refuses_what_it_does_not_understand(self):
        with pytest.raises(LLMInputError, match="limiter_url"):
            book_from_url("http://x", "run")
