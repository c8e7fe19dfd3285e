"""Where the lines of a journal go: appended to a file, or gathered into small files."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from airflow_llm_provider.dataset.files.urls import public_uri, reason
from airflow_llm_provider.errors import LLMStateError

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_llm_provider.dataset.files.layout import Layout


class Sink(Protocol):
    """Where the lines of a journal go."""

    files: list[str]

    def write(self, line: bytes) -> None:
        """Take one line."""
        ...

    def flush(self) -> None:
        """Wait until every line is on storage."""
        ...

    def close(self) -> None:
        """Flush, and let go of the files."""
        ...

    def discard(self) -> None:
        """Let go of the files without a flush: nobody will read them."""
        ...


class AppendedFile:
    """An append-only file on a local disk: one ``write`` a record, synced every so often.

    :param monotonic: clock of the syncs.
    """

    def __init__(
        self, layout: Layout, name: str, monotonic: Callable[[], float], sync_seconds: float
    ) -> None:
        self._path = Path(layout.storage.path(name))
        self._uri = public_uri(layout.uri(name))
        self._name = name
        self._monotonic = monotonic
        self._sync_seconds = sync_seconds
        self._lock = threading.Lock()
        self._handle: int | None = None
        self._synced_at = monotonic()
        self._syncing: threading.Thread | None = None
        self._sync_error: OSError | None = None
        self._torn = False
        self._closed = False
        self.files: list[str] = []

    def write(self, line: bytes) -> None:
        """Write one line."""
        with self._lock:
            try:
                handle = self._open()
                # After a write that failed half-way, the next record begins on a line of its own.
                data = b"\n" + line if self._torn else line
                self._torn = True
                if os.write(handle, data) != len(data):
                    raise LLMStateError(f"{self._uri} could not be written: the disk is full")
                self._torn = False
                self._sync_aside(handle)
            except OSError as error:
                raise LLMStateError(f"{self._uri} could not be written: {reason(error)}") from error

    def _open(self) -> int:
        if self._closed:
            raise LLMStateError(f"{self._uri} is closed: a record came after the end")
        if self._handle is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666)
            self.files.append(self._name)
        return self._handle

    def _sync_aside(self, handle: int) -> None:
        """Sync in a thread when it is time, so that nobody waits for the disk; its error is the next write's."""
        if self._sync_error is not None:
            raise self._sync_error
        if self._monotonic() - self._synced_at < self._sync_seconds:
            return
        if self._syncing is None or not self._syncing.is_alive():
            self._synced_at = self._monotonic()
            self._syncing = threading.Thread(
                target=self._sync, args=(handle,), name="llm-journal", daemon=True
            )
            self._syncing.start()

    def _sync(self, handle: int) -> None:
        try:
            os.fsync(handle)
        except OSError as error:
            self._sync_error = error

    def _sync_now(self, handle: int) -> None:
        if self._syncing is not None:
            self._syncing.join()
        self._sync(handle)
        self._synced_at = self._monotonic()
        if self._sync_error is not None:
            raise self._sync_error

    def flush(self) -> None:
        """Sync what was written to the disk."""
        with self._lock:
            if self._handle is not None:
                try:
                    self._sync_now(self._handle)
                except OSError as error:
                    raise LLMStateError(f"{self._uri} could not be written: {reason(error)}") from error

    def close(self) -> None:
        """Sync and close the file."""
        try:
            self.flush()
        finally:
            with self._lock:
                if self._handle is not None:
                    os.close(self._handle)
                    self._handle = None
                self._closed = True

    def discard(self) -> None:
        """Close the file."""
        with self._lock:
            if self._syncing is not None:
                self._syncing.join()
            if self._handle is not None:
                os.close(self._handle)
                self._handle = None
            self._closed = True


class GatheredParts:
    """Small files on an object store, put by a thread, so that nobody waits for a PUT.

    :param name: beginning of the files' names.
    :param part_seconds: shortest time between two files.
    """

    def __init__(self, layout: Layout, name: str, part_seconds: float) -> None:
        self._layout = layout
        self._name = name
        self._part_seconds = part_seconds
        self._changed = threading.Condition()
        self._lines: list[bytes] = []
        self._putting = False
        self._hurry = False
        self._closed = False
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None
        self.files: list[str] = []

    def write(self, line: bytes) -> None:
        """Hand one line to the thread.

        :raises LLMStateError: when an earlier one could not be put.
        """
        with self._changed:
            self._raise_error()
            if self._closed:
                raise LLMStateError(
                    f"{public_uri(self._layout.uri(self._name))} is closed: a record came after the end"
                )
            self._lines.append(line)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="llm-journal", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until every line is on storage."""
        with self._changed:
            self._hurry = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._error or not (self._lines or self._putting))
            self._hurry = False
            self._raise_error()

    def close(self) -> None:
        """Flush, and end the thread."""
        try:
            self.flush()
        finally:
            with self._changed:
                self._closed = True
                self._changed.notify_all()
            if self._thread is not None:
                self._thread.join()

    def discard(self) -> None:
        """End the thread; what it has not put is never put."""
        with self._changed:
            self._lines = []
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self._error = None

    def _raise_error(self) -> None:
        if self._error is not None:
            raise LLMStateError(str(self._error)) from self._error

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines or self._closed)
                if not self._lines:
                    return
                lines, self._lines = self._lines, []
                self._putting = True
            self._put(lines)
            with self._changed:
                self._putting = False
                self._changed.notify_all()
                if self._error is not None:
                    return
                self._changed.wait_for(lambda: self._hurry or self._closed, timeout=self._part_seconds)

    def _put(self, lines: list[bytes]) -> None:
        name = f"{self._name}-{len(self.files):06d}.jsonl"
        try:
            self._layout.storage.write_bytes(name, b"".join(lines))
            self.files.append(name)
        except Exception as error:  # noqa: BLE001 -- raised again in the thread that writes
            self._error = error
