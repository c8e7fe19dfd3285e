"""Whole files on any fsspec filesystem: readers see the old file or the new one, and unknown is never absent."""

from __future__ import annotations

import datetime as dt
import math
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_llm_provider.dataset.files.urls import public_uri, reason
from airflow_llm_provider.errors import LLMStateError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsspec import AbstractFileSystem

#: Bytes read ahead per column of a Parquet file.
PARQUET_BUFFER = 1 << 20


class MissingFileError(LLMStateError):
    """A file that must be there is not."""


class BrokenFileError(LLMStateError):
    """A file can be read, but is not what it should be: cut short, or damaged."""


def is_broken(error: BaseException) -> bool:
    """Tell whether a failed read means damaged content, not storage that could not be reached.

    Arrow reports damaged pages as ``OSError`` too, but only the operating system sets ``errno``.
    """
    if isinstance(error, OSError):
        return type(error) is OSError and error.errno is None
    return isinstance(error, (pa.ArrowException, EOFError, UnicodeDecodeError))


@dataclass(frozen=True, kw_only=True, slots=True)
class FileEntry:
    """A file as a listing shows it.

    :param name: relative to the storage's root.
    :param size: bytes.
    :param modified: when it was last written, in seconds since 1970; infinite: nobody can say.
    """

    name: str
    size: int
    modified: float


def _modified(entry: dict[str, Any]) -> float | None:
    """Return when a file was last written, if the listing says so; each filesystem has a word of its own."""
    for key in ("mtime", "LastModified", "last_modified", "created"):
        value = entry.get(key)
        if isinstance(value, dt.datetime):
            return value.timestamp()
        if isinstance(value, (int, float)):
            return float(value)
    return None


class Storage:
    """Files below one root on an object store: a file appears with one PUT, or not at all.

    Names are relative to the root and separated by ``/``. Get one from :class:`~airflow_llm_provider.dataset.files.layout.Layout`.

    :param root: URL of the root, as the user wrote it.
    """

    local = False

    def __init__(self, root: str, fs: AbstractFileSystem, path: str) -> None:
        self.root = root.rstrip("/") or "/"
        self._fs = fs
        self._path = path.rstrip("/")

    def uri(self, name: str) -> str:
        """Return the URI of a file, as a person would write it."""
        return f"{self.root.rstrip('/')}/{name}" if name else self.root

    def path(self, name: str) -> str:
        """Return the path of a file on its filesystem."""
        return f"{self._path}/{name}" if name else self._path

    def same_filesystem(self, fs: AbstractFileSystem) -> bool:
        """Tell whether a path means the same file here and there."""
        return type(self._fs) is type(fs)

    @contextmanager
    def _attempt(self, verb: str, name: str) -> Iterator[None]:
        try:
            yield
        except (LLMStateError, FileNotFoundError):
            raise
        except Exception as error:
            raise LLMStateError(
                f"{public_uri(self.uri(name))} could not be {verb}: {reason(error)}"
            ) from error

    def read_bytes(self, name: str) -> bytes | None:
        """Return a whole file; ``None`` only when there is no such file.

        :raises LLMStateError: when it cannot be read, whatever the reason.
        """
        try:
            with self._attempt("read", name):
                data: bytes = self._fs.cat_file(self.path(name))
                return data
        except FileNotFoundError:
            return None

    def write_bytes(self, name: str, data: bytes, *, lasting: bool = True) -> None:
        """Write a whole file, in the place of an older one.

        :param lasting: whether it is to survive a power cut, which takes a local disk some milliseconds.
        """
        del lasting  # a PUT is only over when the file is safe
        with self._writing(name):
            self._fs.pipe_file(self.path(name), data)

    @contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        try:
            with self._attempt("written", name):
                yield
        except FileNotFoundError as error:
            raise LLMStateError(
                f"{public_uri(self.uri(name))} could not be written: {reason(error)}"
            ) from error

    @contextmanager
    def create(self, name: str, *, staged: bool = False) -> Iterator[IO[bytes]]:
        """Open a file for writing that appears whole at the end; an exception in the block leaves nothing.

        :param staged: whether it will be moved, so that only its content, not its place, is to survive a power cut.
        """
        del staged  # a PUT is only over when the file is safe
        with tempfile.NamedTemporaryFile(prefix="airflow-llm-", suffix=".tmp") as spool:
            yield spool.file
            spool.flush()
            with self._writing(name):
                self._fs.put_file(spool.name, self.path(name))

    def size(self, name: str) -> int | None:
        """Return a file's bytes; ``None`` only when there is no such file."""
        try:
            with self._attempt("looked up", name):
                self._fs.invalidate_cache()
                return int(self._fs.info(self.path(name))["size"] or 0)
        except FileNotFoundError:
            return None

    def modified(self, name: str) -> float:
        """Return when a file was last written, in seconds since 1970; infinite when it is gone, or nobody can say."""
        try:
            with self._attempt("looked up", name):
                return float(self._fs.modified(self.path(name)).timestamp())
        except FileNotFoundError:
            return math.inf

    def exists(self, name: str) -> bool:
        """Tell whether a file is there."""
        return self.size(name) is not None

    def entries(self, folder: str) -> list[FileEntry]:
        """Return the files directly in ``folder``, sorted by name, with what the listing says about them."""
        found = []
        for name, entry in self._listed(folder):
            if entry["type"] != "file":
                continue
            when = _modified(entry)
            found.append(
                FileEntry(
                    name=name,
                    size=int(entry.get("size") or 0),
                    modified=self.modified(name) if when is None else when,
                )
            )
        return found

    def files(self, folder: str) -> list[str]:
        """Return the names of the files directly in ``folder``, sorted; none when there is no such folder."""
        return [name for name, is_file in self._entries(folder) if is_file]

    def folders(self, folder: str) -> list[str]:
        """Return the names of the folders directly in ``folder``, sorted."""
        return [name for name, is_file in self._entries(folder) if not is_file]

    def _entries(self, folder: str) -> list[tuple[str, bool]]:
        return [(name, entry["type"] == "file") for name, entry in self._listed(folder)]

    def _listed(self, folder: str) -> list[tuple[str, dict[str, Any]]]:
        try:
            with self._attempt("listed", folder):
                self._fs.invalidate_cache()
                found: list[dict[str, Any]] = self._fs.ls(self.path(folder), detail=True)
        except FileNotFoundError:
            return []
        own = self.path(folder).strip("/")
        prefix = f"{folder}/" if folder else ""
        named = {
            prefix + entry["name"].rstrip("/").rsplit("/", 1)[-1]: entry
            for entry in found
            if entry["name"].strip("/") != own
        }
        return sorted(named.items())

    def delete(self, name: str) -> None:
        """Delete a file; nothing happens when it is not there."""
        try:
            with self._attempt("deleted", name):
                self._fs.rm_file(self.path(name))
        except FileNotFoundError:
            return

    def delete_folder(self, folder: str) -> None:
        """Delete every file below ``folder``, then the folder."""
        for name, is_file in self._entries(folder):
            if is_file:
                self.delete(name)
            else:
                self.delete_folder(name)
        self.remove_folder(folder)

    def remove_folder(self, folder: str) -> None:
        """Remove a folder if it is empty. Object stores have no folders of their own."""

    def move(self, old: str, new: str) -> None:
        """Move a file, in the place of an older one. Readers see one or the other."""
        with self._writing(new):
            self._fs.cp_file(self.path(old), self.path(new))
        self.delete(old)

    @contextmanager
    def open_parquet(self, name: str) -> Iterator[pq.ParquetFile]:
        """Open a Parquet file for reading in pieces.

        :raises MissingFileError: when there is no such file.
        :raises BrokenFileError: when it is no Parquet file, or a part of one.
        """
        with ExitStack() as stack:
            try:
                with self.reading(name):
                    file = stack.enter_context(self._open_parquet(name, stack))
            except FileNotFoundError as error:
                raise MissingFileError(f"{public_uri(self.uri(name))} is missing") from error
            yield file

    def _open_parquet(self, name: str, stack: ExitStack) -> pq.ParquetFile:
        source = stack.enter_context(self._fs.open(self.path(name), "rb"))
        return pq.ParquetFile(
            source, pre_buffer=False, buffer_size=PARQUET_BUFFER, page_checksum_verification=True
        )

    @contextmanager
    def reading(self, name: str) -> Iterator[None]:
        """Turn what is raised over a damaged file into :class:`BrokenFileError`, the rest into its parent."""
        try:
            yield
        except (LLMStateError, FileNotFoundError):
            raise
        except Exception as error:
            kind = BrokenFileError if is_broken(error) else LLMStateError
            raise kind(f"{public_uri(self.uri(name))} could not be read: {reason(error)}") from error
