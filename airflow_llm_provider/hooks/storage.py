"""Airflow's object storage for layers that know only fsspec."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from airflow_llm_provider.errors import LLMInputError
from airflow_llm_provider.hooks.compat import AirflowNotFoundException

if TYPE_CHECKING:
    from collections.abc import Callable

    from fsspec import AbstractFileSystem

Resolver: TypeAlias = "Callable[[str], tuple[AbstractFileSystem, str]]"

#: Schemes of the machine's own files, where no connection applies.
_LOCAL_SCHEMES = frozenset({"file", "local"})


def storage_resolver(conn_id: str | None = None) -> Resolver:
    """Return a function from a URL to its fsspec filesystem and the path there.

    A connection id in the URL, as in ``s3://my_aws@bucket/key`` and :class:`airflow.sdk.ObjectStoragePath`, goes before
    ``conn_id``; without either, the filesystem looks for credentials itself. A bare path is a local file.

    :param conn_id: Airflow connection of the storage.
    """

    def resolve(url: str) -> tuple[AbstractFileSystem, str]:
        scheme, separator, rest = url.partition("://")
        if not separator:
            scheme, rest = "file", url
        authority, slash, path = rest.partition("/")
        named_conn_id, at, host = authority.rpartition("@")
        plain = f"{scheme}://{host}{slash}{path}" if separator else url
        chosen = (named_conn_id or None) if at else conn_id
        filesystem = _filesystem(scheme, None if scheme in _LOCAL_SCHEMES else chosen)
        return filesystem, str(filesystem._strip_protocol(plain))  # noqa: SLF001 -- fsspec's documented way

    return resolve


def _filesystem(scheme: str, conn_id: str | None) -> AbstractFileSystem:
    from airflow.sdk.io import attach, has_fs  # noqa: PLC0415 -- loads fsspec, which a DAG file need not pay for

    if has_fs(scheme):
        try:
            return attach(scheme, conn_id).fs
        except AirflowNotFoundException as error:
            raise LLMInputError(
                f"the storage connection {conn_id!r} does not exist: create it, or correct storage_conn_id or the "
                f"part before @ in the {scheme}:// URL"
            ) from error
    if conn_id is not None:
        raise LLMInputError(
            f"no installed Airflow provider serves {scheme}:// URLs, so connection {conn_id!r} cannot be used: "
            "install it (s3: apache-airflow-providers-amazon[s3fs], gs: apache-airflow-providers-google, "
            "abfs: apache-airflow-providers-microsoft-azure), or leave the connection out"
        )
    return _plain_filesystem(scheme)


def _plain_filesystem(scheme: str) -> AbstractFileSystem:
    """Return a filesystem that only fsspec knows: ``memory``, or ``s3`` with s3fs but without Airflow's provider."""
    import fsspec  # noqa: PLC0415 -- as above

    try:
        return fsspec.filesystem(scheme)
    except (ImportError, ValueError) as error:
        raise LLMInputError(
            f"URLs with {scheme}:// cannot be opened here ({error}): install what serves them"
        ) from error
