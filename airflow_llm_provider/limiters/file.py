"""One state for every process of this machine: a small mapped file under a file lock.

The default place is in RAM (``/dev/shm``), per user, and gone with the machine's boot. A process that dies, even in the
middle of a write, leaves neither a lock (the kernel releases it) nor an inconsistency (the next one mends the sums).
A file that cannot have been written by us is replaced by one that says "the limit has just been used up": unknown is
never "no limit".

Processes meet when they run as the same user, see the same directory and share a kernel: containers need a common
volume. Other machines never do: keep the file off NFS and use ``redis://`` there. A file that another machine has
written to since we opened it is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import mmap
import os
import stat
import struct
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_llm_provider.engine.clock import Clock, SystemClock
from airflow_llm_provider.engine.limits.state import (
    BOOT,
    BUSY,
    LENGTH,
    MAGIC,
    TOUCHED,
    TOUCHED_EPOCH,
    initialise,
    initialise_spent,
    is_sound,
    rebase,
    resum,
)
from airflow_llm_provider.errors import LLMStateError

if TYPE_CHECKING:
    from airflow_llm_provider.engine.limits.state import State

_DOUBLE = struct.Struct("<d")
_BYTES = _DOUBLE.size * LENGTH
#: Seconds for which another process may hold the lock, which it needs for microseconds.
_LOCK_TIMEOUT = 10.0
#: Attempts at the lock in a row before other tasks get a turn, and the pauses between them, in seconds.
_SPINS = 20
_SPIN = 0.00002
_YIELD = 0.001
#: Seconds between looks at the file's path.
_LOOK_SECONDS = 1.0
#: Files that nobody has written to for that many seconds are forgotten.
_KEPT = 30 * 86_400
#: Monotonic clocks of one boot differ by less, in seconds.
_CLOCK_SLACK = 1.0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_SHM = Path("/dev/shm")  # noqa: S108 -- a directory of our own in it, checked to be ours


def default_directory() -> Path:
    """Return where this user's processes on this machine meet, whatever session or environment they run in."""
    base = _SHM if _SHM.is_dir() and os.access(_SHM, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())
    return base / f"airflow-llm-provider-{os.getuid()}"


class FileStore:
    """A state in a file.

    :param path: the file; its directory is made, for this user only, if it does not exist.
    :param window: seconds of the limits' window; senders with different windows need different files.
    :raises LLMStateError: when the file cannot be opened, or its directory belongs to somebody else.
    """

    def __init__(self, path: Path, *, window: float = 60.0, clock: Clock | None = None) -> None:
        self._path = path
        self._window = window
        self._clock = clock or SystemClock()
        self._boot = _boot_number()
        self._fd = -1
        self._pid = 0
        self._inode = 0
        self._look_at = 0.0
        self._map: mmap.mmap | None = None
        self._state: memoryview[float] = memoryview(bytearray(_BYTES)).cast("d")
        self._open()

    def peek(self) -> State:
        """Return the state to look at, unlocked."""
        return self._state

    async def lock(self) -> State:
        """Return the state once this process alone may write to it.

        :raises LLMStateError: when the file cannot be had, or the lock is not released.
        """
        if self._pid != os.getpid():
            self._reopen()  # a fork shares its parent's lock, which would keep out neither
        if not self._try_lock():
            await self._wait_for_lock()
        try:
            while not self._is_in_place():
                self._reopen()
                if not self._try_lock():
                    await self._wait_for_lock()
            self._check()
        except BaseException:
            self._release()
            raise
        self._state[BUSY] = 1.0
        return self._state

    def unlock(self, *, sound: bool) -> None:
        """Let others write; after a step that a signal broke into, the next writer mends the sums."""
        if sound:
            self._state[BUSY] = 0.0
        self._release()

    def close(self) -> None:
        """Unmap and close the file, which stays for others."""
        if self._fd < 0:
            return
        self._state = memoryview(bytearray(self._state.tobytes())).cast("d")
        if self._map is not None:
            with contextlib.suppress(BufferError):  # somebody still looks at it; it goes when they do
                self._map.close()
        os.close(self._fd)
        self._fd, self._map = -1, None

    def _open(self) -> None:
        self._fd = open_private(self._path)
        self._pid = os.getpid()
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        try:
            self._map_file()
        except OSError as error:
            raise LLMStateError(
                f"The shared limiter's file {self._path} cannot be mapped ({error.strerror}): make room on its file "
                "system, or set another limiter_url."
            ) from error
        finally:
            self._release()

    def _map_file(self) -> None:
        """Map the file, first giving it a sound content."""
        status = os.fstat(self._fd)
        known = self._state.tobytes() if self._state[MAGIC] else b""
        if status.st_size != _BYTES:
            os.ftruncate(self._fd, _BYTES)
        self._map = mmap.mmap(self._fd, _BYTES)
        self._inode = status.st_ino
        self._state = memoryview(self._map).cast("d")
        now, epoch = self._clock.monotonic(), self._clock.time()
        if status.st_size == 0:
            if known:  # the file was deleted under us: what we still have mapped is the newest there is
                self._map[:] = known
            else:
                initialise(self._state, window=self._window, now=now)
                _forget_old(self._path, epoch)
        elif status.st_size != _BYTES:
            initialise_spent(self._state, window=self._window, now=now)
        elif not _belongs(self._state, self._boot, now):
            if is_sound(self._state, window=self._window, now=self._state[TOUCHED]):
                rebase(self._state, window=self._window, now=now, epoch=epoch)
            else:
                initialise_spent(self._state, window=self._window, now=now)
        self._state[BOOT] = self._boot
        if not is_sound(self._state, window=self._window, now=now):
            initialise_spent(self._state, window=self._window, now=now)
            self._state[BOOT] = self._boot
        self._touch(now, epoch)

    def _check(self) -> None:
        """Make sure that the state is one to go on from; to be called under the lock."""
        state, now = self._state, self._clock.monotonic()
        if state[BUSY] or not state[MAGIC]:
            if is_sound(state, window=self._window, now=now):
                resum(state)
            else:
                initialise_spent(state, window=self._window, now=now)
                state[BOOT] = self._boot
        if state[BOOT] != self._boot:
            raise LLMStateError(
                f"The shared limiter's file {self._path} is written to by another machine, whose clock is not ours. "
                "Keep it off shared storage; use a redis:// limiter_url to share limits between machines."
            )
        self._touch(now, self._clock.time())

    def _touch(self, now: float, epoch: float) -> None:
        self._state[TOUCHED] = now
        self._state[TOUCHED_EPOCH] = epoch

    def _is_in_place(self) -> bool:
        """Tell whether the locked file is still the one that others find, in full size: cleaners delete old files."""
        status = os.fstat(self._fd)
        if not status.st_nlink or status.st_size != _BYTES:
            return False
        # One that was moved away is found out by its path, which takes ten times as long to look up.
        now = time.monotonic()
        if now < self._look_at:
            return True
        try:
            status = self._path.stat(follow_symlinks=False)
        except FileNotFoundError:
            return False
        if status.st_ino != self._inode:
            return False
        self._look_at = now + _LOOK_SECONDS
        return True

    def _reopen(self) -> None:
        self.close()
        self._open()

    def _try_lock(self) -> bool:
        for _ in range(_SPINS):
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_SPIN)
            else:
                return True
        return False

    async def _wait_for_lock(self) -> None:
        deadline = time.monotonic() + _LOCK_TIMEOUT
        while time.monotonic() < deadline:
            # Real time, not the injected clock's: it is the operating system that is waited for.
            await asyncio.sleep(_YIELD)
            if self._try_lock():
                return
        raise LLMStateError(
            f"Another process has held the lock of {self._path} for {_LOCK_TIMEOUT:.0f} s; it is needed for "
            "microseconds, so that process is probably stopped: continue or end it."
        )

    def _release(self) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_UN)


def open_private(path: Path) -> int:
    """Open a file of our own to read and write, made if it is not there, and return its descriptor.

    :raises LLMStateError: when it cannot be opened, or its directory belongs to somebody else.
    """
    try:
        mode = 0o660 if _ensure_directory(path.parent) else 0o600
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    except OSError as error:
        raise LLMStateError(
            f"The shared file {path} cannot be opened ({error.strerror}). Make its directory writable for the user "
            "that Airflow runs as, or set another limiter_url."
        ) from error


def _ensure_directory(directory: Path) -> bool:
    """Make the directory, for this user only, and return whether others may use it too."""
    try:
        directory.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        status = directory.stat()
        if directory == default_directory() and (status.st_uid != os.getuid() or directory.is_symlink()):
            raise LLMStateError(
                f"{directory} belongs to somebody else, who could change our limits: remove it, or set limiter_url "
                "to a directory of this user"
            ) from None
        return bool(status.st_mode & stat.S_IWGRP)
    return False


def _forget_old(path: Path, epoch: float) -> None:
    """Delete the files beside ``path`` of accounts and models that nobody has used for a month."""
    with contextlib.suppress(OSError):
        for other in path.parent.glob(f"*{path.suffix}"):
            # Not by the time of the file, which a mapped one does not keep. One in use is put back by its users.
            with contextlib.suppress(OSError), other.open("rb") as file:
                content = os.pread(file.fileno(), _DOUBLE.size, _DOUBLE.size * TOUCHED_EPOCH)
                # 0: it is being made at this moment.
                if len(content) == _DOUBLE.size and 0 < _DOUBLE.unpack(content)[0] < epoch - _KEPT:
                    other.unlink()


def _belongs(state: State, boot: float, now: float) -> bool:
    """Tell whether the state's times are those of this boot's clock."""
    return state[BOOT] == boot and state[TOUCHED] <= now + _CLOCK_SLACK


def _boot_number() -> float:
    """Return a number that only this boot of this machine has; 1 where the system does not tell."""
    try:
        text = _BOOT_ID.read_bytes()
    except OSError:
        return 1.0
    return float(int.from_bytes(hashlib.blake2b(text, digest_size=6).digest(), "big") + 2)
