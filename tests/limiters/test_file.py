import asyncio
import fcntl
import os
import signal
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from airflow_llm_provider.engine.limiter import Cost
from airflow_llm_provider.engine.limits import bucket
from airflow_llm_provider.engine.limits.account import AccountLimiter
from airflow_llm_provider.engine.limits.backend import LocalBackend
from airflow_llm_provider.engine.limits.rate_limits import RateLimits
from airflow_llm_provider.engine.limits.state import (
    BOOT,
    BUSY,
    LEARNED_TOKENS,
    LENGTH,
    PAUSED_UNTIL,
    TOUCHED,
    USED_REQUESTS,
    USED_TOKENS,
    span,
)
from airflow_llm_provider.errors import LLMStateError
from airflow_llm_provider.limiters import file as file_module
from airflow_llm_provider.limiters.file import FileStore, default_directory
from airflow_llm_provider.testing.clock import ManualClock
from airflow_llm_provider.testing.limiter_contract import LimiterContract


class TestFileLimiter(LimiterContract):
    @pytest.fixture(autouse=True)
    def _account(self, tmp_path):
        self.path = tmp_path / "limits" / "account.limits"

    def open(self, limits, clock, scope=""):
        store = FileStore(self.path, window=limits.window, clock=clock)
        return AccountLimiter(LocalBackend(store, clock=clock), limits=limits, clock=clock, scope=scope)


@pytest.fixture
def clock():
    return ManualClock(start=5000.0)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "account.limits"


def limiter_on(store, clock, **limits):
    return AccountLimiter(LocalBackend(store, clock=clock), limits=RateLimits(**limits), clock=clock)


def first_wait(path, clock, **limits):
    """Return how long the first request of a new sender waits."""
    limiter = limiter_on(FileStore(path, clock=clock), clock, **(limits or {"requests_per_minute": 60}))
    wait = asyncio.run(limiter.reserve(Cost(tokens=1))).wait
    asyncio.run(limiter.aclose())
    return wait


def use_up(path, clock, tokens=1000):
    """Take all of a limit of 1,000 tokens and leave the file behind."""
    store = FileStore(path, clock=clock)
    asyncio.run(limiter_on(store, clock, tokens_per_minute=1000).reserve(Cost(tokens=tokens)))
    return store


class TestLocking:
    def test_a_stopped_holder_is_named_and_not_waited_for_forever(self, path, clock, monkeypatch):
        monkeypatch.setattr(file_module, "_LOCK_TIMEOUT", 0.05)
        store = FileStore(path, clock=clock)
        with path.open("r+b") as holder:
            fcntl.flock(holder, fcntl.LOCK_EX)
            with pytest.raises(LLMStateError, match="held the lock"):
                asyncio.run(store.lock())
        store.close()

    def test_a_holder_that_lets_go_is_waited_for(self, path, clock):
        store = FileStore(path, clock=clock)

        async def test():
            with path.open("r+b") as holder:
                fcntl.flock(holder, fcntl.LOCK_EX)
                asyncio.get_running_loop().call_later(0.02, fcntl.flock, holder, fcntl.LOCK_UN)
                await store.lock()
            store.unlock(sound=True)

        asyncio.run(test())
        store.close()

    def test_a_killed_holder_leaves_no_lock_and_its_half_done_step_is_mended(self, path):
        """A real process is killed while it holds the lock, between the ledger and its sums."""
        code = f"""
            import asyncio, os, signal
            from pathlib import Path
            from airflow_llm_provider.engine.limits.state import HEADER, RING, TAIL
            from airflow_llm_provider.limiters.file import FileStore
            async def main():
                state = await FileStore(Path({str(path)!r})).lock()
                entry = HEADER + 2 * (int(state[TAIL]) % RING)
                state[entry], state[entry + 1] = 3.0, 700.0
                os.kill(os.getpid(), signal.SIGKILL)
            asyncio.run(main())
        """
        done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False)
        assert done.returncode == -signal.SIGKILL
        store = FileStore(path)
        assert store.peek()[BUSY] == 1.0
        state = asyncio.run(store.lock())
        assert (state[USED_REQUESTS], state[USED_TOKENS]) == (3.0, 700.0)
        store.unlock(sound=True)
        assert state[BUSY] == 0.0
        del state
        store.close()

    def test_a_step_that_a_signal_broke_into_is_mended(self, path, clock):
        store = FileStore(path, clock=clock)
        asyncio.run(store.lock())[USED_TOKENS] = 12345.0
        store.unlock(sound=False)
        assert asyncio.run(store.lock())[USED_TOKENS] == 0.0
        store.unlock(sound=True)
        store.close()

    def test_a_forked_child_has_a_lock_of_its_own(self, path, clock):
        store = FileStore(path, clock=clock)
        asyncio.run(store.lock())
        child = os.fork()
        if child == 0:
            file_module._LOCK_TIMEOUT = 0.05
            try:
                fcntl.flock(store._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the parent's lock is shared by a fork
                store._open = lambda: os._exit(7)  # so another file description is opened
                asyncio.run(store.lock())
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        store.unlock(sound=True)
        store.close()


class TestDamagedFile:
    @pytest.mark.parametrize(
        "damage",
        [
            lambda content: content[:100],
            lambda content: content[: len(content) // 2],
            lambda content: content + b"x",
            lambda content: b"\xff" * len(content),
            lambda content: bytes(len(content)),
            lambda content: content[:256] + b"\xff" * 8 + content[264:],
            lambda content: content[:-8] + b"\0\0\0\0\0\0\xf0\xbf",
        ],
        ids=["cut", "half", "longer", "ones", "zeros", "nan in the ring", "negative in the ring"],
    )
    def test_counts_as_used_up_and_not_as_no_limit(self, path, clock, damage):
        use_up(path, clock).close()
        path.write_bytes(damage(path.read_bytes()))
        assert first_wait(path, clock) == pytest.approx(span(60.0), abs=0.01)
        assert path.stat().st_size == 8 * LENGTH

    def test_is_noticed_by_those_who_have_it_open(self, path, clock):
        store = use_up(path, clock, tokens=10)
        os.truncate(path, 0)
        os.truncate(path, 8 * LENGTH)
        limiter = limiter_on(store, clock, tokens_per_minute=1000)
        assert asyncio.run(limiter.reserve(Cost(tokens=1))).wait == pytest.approx(span(60.0), abs=0.01)
        store.close()

    def test_a_deleted_file_is_written_anew_with_what_is_still_known(self, path, clock):
        store = use_up(path, clock)
        path.unlink()
        asyncio.run(store.lock())
        store.unlock(sound=True)
        other = FileStore(path, clock=clock)
        assert other.peek()[USED_TOKENS] == 1000
        other.close()
        store.close()


class TestOldFiles:
    def test_of_accounts_that_nobody_uses_any_more_are_forgotten(self, tmp_path):
        for name, days in (("old", 31), ("recent", 29)):
            then = ManualClock(start=5000.0, epoch=1_700_000_000.0 - days * 86_400)
            FileStore(tmp_path / f"{name}.limits", clock=then).close()
        (tmp_path / "other.txt").write_bytes(b"\0" * 8 * LENGTH)
        FileStore(tmp_path / "new.limits", clock=ManualClock(start=5000.0)).close()
        assert {path.name for path in tmp_path.iterdir()} == {"recent.limits", "other.txt", "new.limits"}


class TestReboot:
    """The monotonic clock starts anew; the calendar tells how much time went by."""

    def reboot(self, path, *, minutes):
        clock = ManualClock(start=5000.0, epoch=1_700_000_000.0)
        store = use_up(path, clock)
        store.peek()[LEARNED_TOKENS] = 77.0
        return store, ManualClock(start=10.0, epoch=1_700_000_000.0 + 5000.0 - 10.0 + 60 * minutes)

    def test_waits_for_the_rest_of_the_window(self, path):
        store, clock = self.reboot(path, minutes=0.5)
        store.close()
        assert first_wait(path, clock) == pytest.approx(span(60.0) - 30.0, abs=0.01)

    def test_forgets_what_is_long_gone_and_keeps_what_was_learned(self, path):
        store, clock = self.reboot(path, minutes=5)
        store.close()
        assert first_wait(path, clock) == 0
        store = FileStore(path, clock=clock)
        assert store.peek()[LEARNED_TOKENS] == 77.0
        store.close()

    def test_trusts_nobody_by_what_another_clock_says(self, path):
        store, clock = self.reboot(path, minutes=1)
        bucket.trust(store.peek(), 7, 5000.0, 5000.0)
        store.close()
        store = FileStore(path, clock=clock)
        assert not bucket.is_trusted(store.peek(), 7, clock.monotonic())
        store.close()

    def test_a_pause_goes_on(self, path):
        store, clock = self.reboot(path, minutes=5)
        store.peek()[PAUSED_UNTIL] = 5000.0 + 3600.0
        store.close()
        assert first_wait(path, clock) == pytest.approx(3300.0, abs=0.1)

    def test_another_boot_is_noticed_even_if_its_clock_is_later(self, path):
        store, _ = self.reboot(path, minutes=5)
        store.peek()[BOOT] += 1.0
        store.close()
        later = ManualClock(start=9000.0, epoch=1_700_000_000.0 + 300.0)
        store = FileStore(path, clock=later)
        assert store.peek()[TOUCHED] == 9000.0
        assert store.peek()[USED_TOKENS] == 0
        store.close()

    def test_another_machine_writing_to_it_is_refused(self, path, clock):
        store = FileStore(path, clock=clock)
        store.peek()[BOOT] += 1.0
        with pytest.raises(LLMStateError, match="another machine"):
            asyncio.run(store.lock())
        store.close()


class TestPermissions:
    def test_others_can_neither_read_nor_write_it(self, tmp_path, clock):
        path = tmp_path / "new" / "account.limits"
        FileStore(path, clock=clock).close()
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

    def test_a_directory_of_a_group_is_for_the_group(self, tmp_path, clock):
        directory = tmp_path / "shared"
        directory.mkdir()
        directory.chmod(0o770)
        before = os.umask(0)
        try:
            FileStore(directory / "account.limits", clock=clock).close()
        finally:
            os.umask(before)
        assert stat.S_IMODE((directory / "account.limits").stat().st_mode) == 0o660

    def test_a_directory_that_cannot_be_made_is_named_with_a_remedy(self, tmp_path, clock):
        (tmp_path / "file").write_text("")
        with pytest.raises(LLMStateError, match="limiter_url"):
            FileStore(tmp_path / "file" / "account.limits", clock=clock)

    def test_a_link_in_the_files_place_is_not_followed(self, tmp_path, clock):
        (tmp_path / "account.limits").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(LLMStateError):
            FileStore(tmp_path / "account.limits", clock=clock)
        assert not (tmp_path / "elsewhere").exists()

    def test_the_default_directory_of_somebody_else_is_refused(self, tmp_path, clock, monkeypatch):
        theirs, mine = tmp_path / "theirs", tmp_path / "mine"
        theirs.mkdir()
        mine.symlink_to(theirs)
        monkeypatch.setattr(file_module, "default_directory", lambda: mine)
        with pytest.raises(LLMStateError, match="somebody else"):
            FileStore(mine / "account.limits", clock=clock)


class TestDefaultDirectory:
    def test_is_the_same_whatever_the_environment(self, monkeypatch):
        before = default_directory()
        monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/elsewhere")
        monkeypatch.setenv("HOME", "/elsewhere")
        assert default_directory() == before
        assert str(os.getuid()) in Path(before).name
