"""Airflow's object storage for layers that know only fsspec."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import BaseHook

from airflow_llm_provider.errors import LLMInputError
from airflow_llm_provider.hooks.compat import AirflowNotFoundException

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

    from airflow_llm_provider.dataset.files.urls import Resolver

#: Schemes of the machine's own files, where no connection applies.
_LOCAL_SCHEMES = frozenset({"file", "local"})


def storage_resolver(conn_id: str | None = None) -> Resolver:
    """Return a function from a URL to its fsspec filesystem and the path there.

    A connection id in the URL, as in ``s3://my_aws@bucket/key`` and :class:`airflow.sdk.ObjectStoragePath`, goes before
    ``conn_id``; without either, the filesystem looks for credentials itself. A bare path is a local file.

    :param conn_id: Airflow connection of the storage.
    """

    def resolve(url: str) -> tuple[AbstractFileSystem, str]:
        from airflow.sdk.io import has_fs  # noqa: PLC0415 -- loads fsspec, which a DAG file need not pay for

        from airflow_llm_provider.dataset.files import urls  # noqa: PLC0415 -- as above

        scheme, separator, rest = url.partition("://")
        if not separator or scheme in _LOCAL_SCHEMES:
            return urls.resolve(url)
        urls.refuse_password(url)
        authority, slash, path = rest.partition("/")
        named_conn_id, _, host = authority.rpartition("@")
        chosen = named_conn_id or conn_id
        if not has_fs(scheme):
            _refuse_connection(scheme, chosen)
            return _resolve_without_airflow(url)
        filesystem = _filesystem(scheme, chosen)
        return filesystem, str(filesystem._strip_protocol(f"{scheme}://{host}{slash}{path}"))  # noqa: SLF001 -- as fsspec does

    return resolve


def _filesystem(scheme: str, conn_id: str | None) -> AbstractFileSystem:
    from airflow.sdk.io import attach  # noqa: PLC0415 -- as above

    try:
        if conn_id is not None:
            # Amazon's hook takes a missing connection for none, and looks for credentials elsewhere.
            BaseHook.get_connection(conn_id)
        return attach(scheme, conn_id).fs
    except AirflowNotFoundException as error:
        raise LLMInputError(
            f"the storage connection {conn_id!r} does not exist: create it, or correct storage_conn_id or the part "
            f"before @ in the {scheme}:// URL"
        ) from error


def _refuse_connection(scheme: str, conn_id: str | None) -> None:
    if conn_id is not None:
        raise LLMInputError(
            f"no installed Airflow provider serves {scheme}:// URLs, so connection {conn_id!r} cannot be used: "
            "install it (s3: apache-airflow-providers-amazon[s3fs], gs: apache-airflow-providers-google, "
            "abfs: apache-airflow-providers-microsoft-azure), or leave the connection out"
        )


def _resolve_without_airflow(url: str) -> tuple[AbstractFileSystem, str]:
    """Resolve what only fsspec knows: ``memory``, or ``s3`` with s3fs but without Airflow's provider."""
    from airflow_llm_provider.dataset.files import urls  # noqa: PLC0415 -- as above

    try:
        return urls.resolve(url)
    except (ImportError, ValueError) as error:
        scheme = url.partition("://")[0]
        raise LLMInputError(
            f"URLs with {scheme}:// cannot be opened here ({error}): install what serves them"
        ) from error
