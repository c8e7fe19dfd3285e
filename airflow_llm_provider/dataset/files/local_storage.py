"""Whole files on a local filesystem."""

from __future__ import annotations

import errno
import os
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING
from uuid import uuid4

import pyarrow.parquet as pq

from airflow_llm_provider.dataset.files.storage import PARQUET_BUFFER, Storage
from airflow_llm_provider.dataset.files.urls import public_uri, reason
from airflow_llm_provider.errors import LLMStateError

if TYPE_CHECKING:
    from collections.abc import Iterator


class LocalStorage(Storage):
    """Files below one local folder: written under a hidden temporary name, synced if they are to last, then renamed."""

    local = True

    def read_bytes(self, name: str) -> bytes | None:
        """Return a whole file; ``None`` only when there is no such file."""
        try:
            with self._attempt("read", name):
                return Path(self.path(name)).read_bytes()
        except FileNotFoundError:
            return None

    def write_bytes(self, name: str, data: bytes, *, lasting: bool = True) -> None:
        """Write a whole file, in the place of an older one.

        :param lasting: whether it is to survive a power cut.
        """
        with self._created(name, lasting=lasting) as file:
            file.write(data)

    @contextmanager
    def create(self, name: str, *, staged: bool = False) -> Iterator[IO[bytes]]:
        """Open a file for writing that appears whole at the end; an exception in the block leaves nothing.

        :param staged: whether it will be moved, so that only its content, not its place, is to survive a power cut.
        """
        with self._created(name, lasting=True, staged=staged) as file:
            yield file

    @contextmanager
    def _created(self, name: str, *, lasting: bool, staged: bool = False) -> Iterator[IO[bytes]]:
        target = Path(self.path(name))
        # Hidden and not *.parquet: no reader of the folder takes it for data. Unique: writers never share one.
        temporary = target.with_name(f".{target.name}.{uuid4().hex}.tmp")
        with self._writing(name):
            target.parent.mkdir(parents=True, exist_ok=True)
            file = temporary.open("xb")
        try:
            try:
                with file:
                    yield file
                    file.flush()
                    if lasting:
                        os.fsync(file.fileno())
            except OSError as error:
                # A full disk shows wherever the buffer is emptied: in a write of the caller's, here, or in closing.
                raise LLMStateError(
                    f"{public_uri(self.uri(name))} could not be written: {reason(error)}"
                ) from error
            with self._writing(name):
                temporary.replace(target)
                if lasting and not staged:
                    _sync_folder(target.parent)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def move(self, old: str, new: str) -> None:
        """Rename a file, in the place of an older one."""
        target = Path(self.path(new))
        with self._writing(new):
            target.parent.mkdir(parents=True, exist_ok=True)
            Path(self.path(old)).replace(target)
            _sync_folder(target.parent)

    def _open_parquet(self, name: str, stack: ExitStack) -> pq.ParquetFile:
        del stack
        return pq.ParquetFile(
            self.path(name), pre_buffer=False, buffer_size=PARQUET_BUFFER, page_checksum_verification=True
        )

    def remove_folder(self, folder: str) -> None:
        """Remove a folder if it is empty."""
        try:
            Path(self.path(folder)).rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            # Another writer may have put a file there meanwhile: then the folder is in use and stays.
            if error.errno != errno.ENOTEMPTY:
                raise LLMStateError(
                    f"{public_uri(self.uri(folder))} could not be deleted: {reason(error)}"
                ) from error


def _sync_folder(folder: Path) -> None:
    """Make a rename survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
