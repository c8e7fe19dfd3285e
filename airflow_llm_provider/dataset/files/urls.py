"""URLs: from what a user writes to a filesystem and a path, and to what may be shown."""

from __future__ import annotations

import re
from collections.abc import Callable

from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from airflow_llm_provider.errors import LLMInputError

#: Turns a URL into a filesystem and a path on it.
Resolver = Callable[[str], tuple[AbstractFileSystem, str]]

#: In http URLs a user alone may be a token; elsewhere, as in ``s3://my_aws@bucket``, it names a connection.
_USER_INFO = re.compile(r"(?:(?<=http://)|(?<=https://))[^/@\s]+@|(?<=://)[^/@\s]*:[^/\s]*@")
#: All that follows in an http URL; elsewhere not the ``?`` of a glob.
_QUERY = re.compile(r"(https?://[^\s?]+(?=\?)|://[^\s?]+(?=\?[\w.~%-]+=))\?\S+")
_PASSWORD = re.compile(r"://[^/@]*:[^/]*@")
_LONGEST_REASON = 300


def resolve(url: str) -> tuple[AbstractFileSystem, str]:
    """Find the filesystem of a URL. Without a scheme it is a local path; nothing in a path is unquoted.

    :raises LLMInputError: when there is a password in it.
    """
    if url.startswith("file:") or "://" not in url:
        path = re.sub(r"^file:(//(?=/))?", "", url)
        fs = LocalFileSystem()
        return fs, fs._strip_protocol(path)  # noqa: SLF001 -- fsspec's only way to make a path absolute
    refuse_password(url)
    fs, path = url_to_fs(url)
    return fs, path


def refuse_password(url: str) -> None:
    """Refuse what would end up in plans, manifests and XCom.

    :raises LLMInputError: when there is a password in the URL.
    """
    if _PASSWORD.search(url):
        raise LLMInputError(
            f"the URL {public_uri(url)} holds a password, which everybody who sees the output would see: put it into an "
            "Airflow connection and name that in storage_conn_id, or into the environment or fsspec's configuration"
        )


def public_uri(uri: str) -> str:
    """Return ``uri`` without a password or a signature: fit for logs and messages."""
    return _QUERY.sub(r"\1", _USER_INFO.sub("***@", uri))


def reason(error: BaseException) -> str:
    """Say what an error of the storage is, in one short line without secrets."""
    text = public_uri(" ".join(str(error).split()))[:_LONGEST_REASON]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
