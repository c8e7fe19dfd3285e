"""The account book of a run in a file of this machine."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import struct
import time
from typing import TYPE_CHECKING, Any

from airflow_llm_provider.engine.book import Balance, BookAwayError, Reservations, Spent, at_least, exceeds
from airflow_llm_provider.errors import LLMStateError
from airflow_llm_provider.limiters.file import open_private

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SUFFIX = ".book"
#: Seconds for which a book is kept after its last entry.
KEPT = 30 * 86_400
#: A mark of ours, tokens and US dollars that are spent, how many holders have reserved something.
_HEAD = struct.Struct("<8sqdI")
#: A holder, and the tokens and US dollars that it has reserved.
_HOLDER = struct.Struct("<16sqd")
_CHECKSUM_BYTES = 8
_MARK = b"llmbook3"
#: Seconds for which another process may hold the lock, which it needs for microseconds, and between attempts at it.
_LOCK_TIMEOUT = 1.0
_LOCK_PAUSE = 0.001


class FileBook:
    """A book in a file of this machine, under a file lock.

    :raises LLMStateError: when the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._open():
            pass
        _forget_old(path.parent)

    def reserve(self, cost: Spent, *, limit: Spent, holder: str = "") -> tuple[bool, Balance]:
        """Reserve ``cost`` unless that takes the total above ``limit``."""
        with self._open() as file:
            spent, held = self._read(file)
            if exceeds(spent + held.total + cost, limit):
                return False, Balance(spent=spent, reserved=held.total)
            held.add(_digest(holder), cost)
            return True, self._write(file, spent, held)

    def settle(self, reserved: Spent, spent: Spent, *, holder: str = "") -> Balance:
        """Replace a reservation."""

        def change(before: Spent, held: Reservations[bytes]) -> Spent:
            held.take(_digest(holder), reserved)
            return before + spent

        return self._change(change)

    def free(self, holder: str) -> Balance:
        """Forget what a holder has reserved."""

        def change(before: Spent, held: Reservations[bytes]) -> Spent:
            held.drop(_digest(holder))
            return before

        return self._change(change)

    def raise_to(self, known: Spent) -> Balance:
        """Raise what is spent."""
        return self._change(lambda before, _: at_least(before, known))

    def _change(self, change: Callable[[Spent, Reservations[bytes]], Spent]) -> Balance:
        with self._open() as file:
            spent, held = self._read(file)
            return self._write(file, change(spent, held), held)

    @contextlib.contextmanager
    def _open(self) -> Any:
        # Opened each time: that leaves no state which a fork or a deleted file could upset.
        try:
            file = os.open(self._path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            file = open_private(self._path)
        except OSError as error:
            raise self._unusable(error) from error
        try:
            self._lock(file)
            yield file
        except OSError as error:
            raise self._unusable(error) from error
        finally:
            os.close(file)

    def _lock(self, file: int) -> None:
        deadline = time.monotonic() + _LOCK_TIMEOUT
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise BookAwayError(
                        f"Another process holds the lock of the account book {self._path}, which is needed for "
                        "microseconds, so that process is probably stopped: continue or end it, and run again. Every "
                        "answer so far is kept.",
                        unchanged=True,
                    ) from None
                time.sleep(_LOCK_PAUSE)
            else:
                return

    def _unusable(self, error: OSError) -> LLMStateError:
        return LLMStateError(
            f"The account book {self._path} of this run's budget cannot be used ({error.strerror}). Make it writable for "
            "the user that Airflow runs as, or set another limiter_url."
        )

    def _read(self, file: int) -> tuple[Spent, Reservations[bytes]]:
        size = os.fstat(file).st_size
        if not size:
            return Spent(), Reservations()
        content = os.pread(file, size, 0)
        mark, tokens, cost, count = _HEAD.unpack(content[: _HEAD.size].ljust(_HEAD.size, b"\0"))
        end = _HEAD.size + _HOLDER.size * count
        # What follows is of a time with more holders.
        if mark != _MARK or content[end : end + _CHECKSUM_BYTES] != _checksum(content[:end]):
            raise LLMStateError(
                f"The account book {self._path} of this run's budget is damaged, so nobody knows what was spent. Delete "
                "it to count anew from what the results say, and run again."
            )
        entries = (_HOLDER.unpack_from(content, _HEAD.size + _HOLDER.size * n) for n in range(count))
        held = Reservations({name: Spent(tokens=own, cost_usd=dollars) for name, own, dollars in entries})
        return Spent(tokens=tokens, cost_usd=cost), held

    def _write(self, file: int, spent: Spent, held: Reservations[bytes]) -> Balance:
        entries = held.by_holder.items()
        body = _HEAD.pack(_MARK, spent.tokens, spent.cost_usd, len(entries)) + b"".join(
            _HOLDER.pack(name, own.tokens, own.cost_usd) for name, own in entries
        )
        # One write, so that a process which is killed leaves the old content or the new.
        os.pwrite(file, body + _checksum(body), 0)
        return Balance(spent=spent, reserved=held.total)


def _digest(holder: str) -> bytes:
    return hashlib.blake2b(holder.encode(), digest_size=16).digest()


def _checksum(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_CHECKSUM_BYTES).digest()


def _forget_old(directory: Path) -> None:
    """Delete books that nobody has written to for a month."""
    oldest = time.time() - KEPT
    with contextlib.suppress(OSError):
        for path in directory.glob(f"*{SUFFIX}"):
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < oldest:
                    path.unlink()
