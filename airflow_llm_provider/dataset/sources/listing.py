"""The input files behind a URL: one file, a folder or a glob, in an order that never varies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from fsspec.implementations.local import LocalFileSystem

from airflow_llm_provider.dataset.files.urls import Resolver, public_uri, reason
from airflow_llm_provider.dataset.sources.walk import FileWalk
from airflow_llm_provider.errors import LLMError, LLMSourceNotFoundError, LLMStateError

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

#: What filesystems call the mark that changes with a file's content.
_VERSIONS = ("ETag", "etag", "md5Hash", "content_md5", "mtime", "LastModified", "last_modified", "created")
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """One input file.

    :param uri: as a person would write it.
    :param path: on its filesystem.
    :param size: bytes.
    :param version: a mark that changes with the content: an ETag, or the time of the last change.
    :param partitions: values in the names of the folders below the source's root, as ``ds=2026-01-01``.
    """

    uri: str
    path: str
    size: int
    version: str
    partitions: tuple[tuple[str, str | None], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a URL names.

    :param fs: filesystem of the files.
    :param root: folder whose files, now and later, all belong to the source; the file itself when it is one. With a
        glob, only as far as it takes in whole folders.
    :param files: the files, sorted by path.
    :param linked: folders elsewhere whose files, now and later, belong to the source by way of a link.
    """

    fs: AbstractFileSystem
    root: str
    files: tuple[SourceFile, ...]
    linked: tuple[str, ...] = ()


def find_files(url: str, resolver: Resolver) -> Found:
    """List the files that a URL names, sorted by path.

    Files and folders whose name begins with ``_`` or ``.`` are passed over, unless the URL names them. A name with
    ``*``, ``?`` or ``[`` is taken literally when there is such a file.

    :raises LLMSourceNotFoundError: when there are none.
    :raises LLMStateError: when a folder cannot be listed: its files would silently be missing.
    """
    try:
        fs, path = resolver(url)
        fs.invalidate_cache()
    except LLMError:
        # The resolver says itself what is wrong, and whether trying again helps.
        raise
    except Exception as error:
        raise LLMStateError(f"{public_uri(url)} could not be opened: {reason(error)}") from error
    path = path.rstrip("/") or path
    walk = FileWalk(fs)
    found = walk.find(path)
    if found is None:
        raise LLMSourceNotFoundError(f"nothing matches the source {public_uri(url)}")
    root, entries = found
    if not entries:
        raise LLMSourceNotFoundError(
            f"the source {public_uri(url)} holds no files; names that begin with '_' or '.' are passed over"
        )
    files = sorted((_file(fs, entry, root) for entry in entries), key=lambda file: file.path)
    takes_all = path == root or "**" in path[len(root) :].split("/")
    return Found(
        fs=fs, root=root if takes_all else path, files=tuple(files), linked=tuple(sorted(walk.linked))
    )


def look_again(found: Found) -> tuple[SourceFile, ...]:
    """Look files up as they were listed: those that are still there, as they are now.

    Only their own folders are listed, whatever else belongs to the source.

    :raises LLMStateError: when a folder cannot be listed.
    """
    found.fs.invalidate_cache()
    walk = FileWalk(found.fs)
    wanted = {file.path: file for file in found.files}
    if list(wanted) == [found.root]:
        entry = walk.info(found.root)
        entries = [] if entry is None else [entry]
    else:
        folders = sorted({path.rpartition("/")[0] for path in wanted})
        entries = [entry for folder in folders for entry in walk.entries(folder)]
    now = {file.path: file for file in (_file(found.fs, entry, found.root) for entry in entries)}
    # The folders below a glob say the same as before.
    return tuple(
        replace(now[path], partitions=file.partitions) for path, file in wanted.items() if path in now
    )


def _file(fs: AbstractFileSystem, entry: dict[str, Any], root: str) -> SourceFile:
    path = str(entry["name"])
    return SourceFile(
        uri=path if isinstance(fs, LocalFileSystem) else fs.unstrip_protocol(path),
        path=path,
        size=int(entry.get("size") or 0),
        version=next((str(entry[key]) for key in _VERSIONS if entry.get(key) is not None), ""),
        partitions=_partitions(path, root),
    )


def _partitions(path: str, root: str) -> tuple[tuple[str, str | None], ...]:
    folders = path.removeprefix(root).strip("/").split("/")[:-1]
    found = []
    for folder in folders:
        key, equals, value = folder.partition("=")
        if equals and key:
            found.append((unquote(key), None if value == _HIVE_NULL else unquote(value)))
    return tuple(found)
