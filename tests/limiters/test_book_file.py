import asyncio
import fcntl
import os
import resource
import stat
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest

from airflow_llm_provider.engine.budget.book import Balance, BookAwayError, Holder
from airflow_llm_provider.engine.budget.spent import Spent
from airflow_llm_provider.errors import LLMStateError
from airflow_llm_provider.limiters.books import FileBook
from tests.limiters.book_contract import BookContract, in_loop


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
            from airflow_llm_provider.engine.budget.book import Holder, Statement
            from airflow_llm_provider.engine.budget.spent import Spent
            from airflow_llm_provider.limiters.books import FileBook

            async def write(holder):
                book = FileBook(Path({str(self.path)!r}))
                await book.open(holder, {{}})
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
