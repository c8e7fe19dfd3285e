"""URLs: from what a user writes to a filesystem and a path, and to what may be shown."""

from __future__ import annotations

import re
from collections.abc import Callable

from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

#: Turns a URL into a filesystem and a path on it.
Resolver = Callable[[str], tuple[AbstractFileSystem, str]]

#: In http URLs a user alone may be a token; elsewhere, as in ``s3://my_aws@bucket``, it names a connection.
_USER_INFO = re.compile(r"(?:(?<=http://)|(?<=https://))[^/@\s]+@|(?<=://)[^/@\s]+:[^/@\s]+@")
#: All that follows in an http URL; elsewhere not the ``?`` of a glob.
_QUERY = re.compile(r"(https?://[^\s?]+(?=\?)|://[^\s?]+(?=\?[\w.~%-]+=))\?\S+")
_LONGEST_REASON = 300


def resolve(url: str) -> tuple[AbstractFileSystem, str]:
    """Find the filesystem of a URL. Without a scheme it is a local path; nothing in a path is unquoted."""
    if url.startswith("file:") or "://" not in url:
        path = re.sub(r"^file:(//(?=/))?", "", url)
        fs = LocalFileSystem()
        return fs, fs._strip_protocol(path)  # noqa: SLF001 -- fsspec's only way to make a path absolute
    fs, path = url_to_fs(url)
    return fs, path


def public_uri(uri: str) -> str:
    """Return ``uri`` without a password or a signature: fit for logs and messages."""
    return _QUERY.sub(r"\1", _USER_INFO.sub("***@", uri))


def reason(error: BaseException) -> str:
    """Say what an error of the storage is, in one short line without secrets."""
    text = public_uri(" ".join(str(error).split()))[:_LONGEST_REASON]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
