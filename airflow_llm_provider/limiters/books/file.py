"""The account book of a run in a file of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import stat
import struct
import time
from typing import TYPE_CHECKING, TypeVar

from airflow_llm_provider.engine.budget.book import Balance, BookAwayError, SessionLostError
from airflow_llm_provider.engine.budget.memory_book import Entry, Page
from airflow_llm_provider.engine.budget.spent import Spent, at_least
from airflow_llm_provider.errors import LLMStateError
from airflow_llm_provider.limiters.file import open_private

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from pathlib import Path

    from airflow_llm_provider.engine.budget.book import Holder, Statement

Changed = TypeVar("Changed")

SUFFIX = ".book"
#: One that is being written.
_NEW = ".book-new"
#: Seconds for which a book is kept after its last entry.
KEPT = 30 * 86_400
#: A mark of ours, tokens and US dollars that are spent, how many holders follow.
_HEAD = struct.Struct("<8sqdI")
#: A holder, its session, the tokens and US dollars that it has told of, those that are reserved for it.
_HOLDER = struct.Struct("<16s16sqdqd")
_CHECKSUM_BYTES = 8
_MARK = b"llmbook4"
#: Seconds for which another process may hold the lock, which it needs for microseconds, and between attempts at it.
_LOCK_TIMEOUT = 1.0
_LOCK_PAUSE = 0.001


class FileBook:
    """A book in a file of this machine, under a file lock.

    :raises LLMStateError: when the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        os.close(self._descriptor())
        _forget_old(path.parent)

    async def open(self, holder: Holder, paid: Mapping[str, Spent]) -> Balance:
        """Begin a session."""
        sessions = {_digest(session): spent for session, spent in paid.items()}
        return (await self._change(lambda page: page.open(*_names(holder), sessions)))[1]

    async def state(self, holder: Holder, statement: Statement, *, limit: Spent) -> tuple[bool, Balance]:
        """Take in a statement."""
        done, balance = await self._change(lambda page: page.state(*_names(holder), statement, limit=limit))
        if done is None:
            raise SessionLostError(str(self._path))
        return done, balance

    async def raise_to(self, known: Spent) -> Balance:
        """Raise what is spent."""

        def change(page: Page[bytes, bytes]) -> None:
            page.spent = at_least(page.spent, known)

        return (await self._change(change))[1]

    async def aclose(self) -> None:
        """Do nothing: the file is open only for each step."""

    async def _change(self, change: Callable[[Page[bytes, bytes]], Changed]) -> tuple[Changed, Balance]:
        async with self._locked() as file:
            page = self._read(file)
            result = change(page)
            self._write(file, page)
            return result, page.balance

    @contextlib.asynccontextmanager
    async def _locked(self) -> AsyncIterator[int]:
        deadline = time.monotonic() + _LOCK_TIMEOUT
        while True:
            # Opened each time: that leaves no state which a fork, a deleted file or a newer one could upset.
            file = self._descriptor()
            try:
                if _lock(file):
                    yield file
                    return
            except OSError as error:
                raise self._unusable(error) from error
            finally:
                os.close(file)
            if time.monotonic() >= deadline:
                raise BookAwayError(
                    f"Another process holds the lock of the account book {self._path}, which is needed for "
                    "microseconds, so that process is probably stopped: continue or end it, and run again. Every "
                    "answer so far is kept."
                )
            await asyncio.sleep(_LOCK_PAUSE)

    def _descriptor(self) -> int:
        try:
            return os.open(self._path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return open_private(self._path)
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: OSError) -> LLMStateError:
        return LLMStateError(
            f"The account book {self._path} of this run's budget cannot be used ({error.strerror}). Make it and its "
            "folder writable for the user that Airflow runs as, make room on its disk, or set another limiter_url."
        )

    def _read(self, file: int) -> Page[bytes, bytes]:
        size = os.fstat(file).st_size
        if not size:
            return Page()
        content = os.pread(file, size, 0)
        mark, tokens, cost, count = _HEAD.unpack(content[: _HEAD.size].ljust(_HEAD.size, b"\0"))
        end = _HEAD.size + _HOLDER.size * count
        if mark != _MARK or content[end:] != _checksum(content[:end]):
            raise LLMStateError(
                f"The account book {self._path} of this run's budget is damaged, so nobody knows what was spent. Delete "
                "it to count anew from what the results say, and run again."
            )
        return Page(
            Spent(tokens=tokens, cost_usd=cost),
            {
                name: Entry(
                    session=session,
                    told=Spent(tokens=told, cost_usd=told_usd),
                    reserved=Spent(tokens=own, cost_usd=own_usd),
                )
                for name, session, told, told_usd, own, own_usd in _HOLDER.iter_unpack(
                    content[_HEAD.size : end]
                )
            },
        )

    def _write(self, file: int, page: Page[bytes, bytes]) -> None:
        body = _HEAD.pack(_MARK, page.spent.tokens, page.spent.cost_usd, len(page.entries)) + b"".join(
            _HOLDER.pack(
                name,
                entry.session,
                entry.told.tokens,
                entry.told.cost_usd,
                entry.reserved.tokens,
                entry.reserved.cost_usd,
            )
            for name, entry in page.entries.items()
        )
        # Another file in its place, so that a process which is killed, or finds the disk full, leaves the old one or the new.
        new = self._path.with_suffix(_NEW)
        new.unlink(missing_ok=True)
        with os.fdopen(open_private(new), "wb") as written:
            os.fchmod(written.fileno(), stat.S_IMODE(os.fstat(file).st_mode))
            written.write(body + _checksum(body))
        new.replace(self._path)


def _lock(file: int) -> bool:
    """Lock a file; return whether that could be done, and nobody had put another in its place before."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return os.fstat(file).st_nlink > 0


def _names(holder: Holder) -> tuple[bytes, bytes]:
    return _digest(holder.name), _digest(holder.session)


def _digest(name: str) -> bytes:
    return hashlib.blake2b(name.encode(), digest_size=16).digest()


def _checksum(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_CHECKSUM_BYTES).digest()


def _forget_old(directory: Path) -> None:
    """Delete books that nobody has written to for a month."""
    oldest = time.time() - KEPT
    with contextlib.suppress(OSError):
        for path in directory.glob(f"*{SUFFIX}*"):
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < oldest:
                    path.unlink()
