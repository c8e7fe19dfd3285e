"""What killed processes left behind in a destination."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from airflow_llm_provider.dataset.files.layout import LEASES, PRIVATE, STAGING
from airflow_llm_provider.errors import LLMStateError

if TYPE_CHECKING:
    from airflow_llm_provider.dataset.files.layout import Layout
    from airflow_llm_provider.dataset.files.storage import Storage

#: Seconds after which no living process still writes a file: one merge and one split take much less.
_ABANDONED = 86_400
#: Characters of the random part of a temporary file's name.
_TOKEN_LENGTH = 32


def sweep(layout: Layout, now: float) -> None:
    """Remove staged output, leases and temporary files that nobody has written to for a day.

    :param now: seconds since 1970.
    """
    # The output is in place: what cannot be swept is swept the next time.
    with suppress(LLMStateError):
        _sweep(layout, now - _ABANDONED)


def _sweep(layout: Layout, before: float) -> None:
    storage = layout.storage
    for folder in storage.folders(STAGING):
        if _is_left(storage, folder, before):
            storage.delete_folder(folder)
    for name in storage.files(LEASES):
        if storage.modified(name) < before:
            storage.delete(name)
    if not storage.local:
        # There a file appears with its last byte.
        return
    # Whatever is kept in which of them, a killed writer leaves it there.
    for folder in ("", PRIVATE, *storage.folders(PRIVATE)):
        for name in storage.files(folder):
            if _is_temporary(name) and storage.modified(name) < before:
                storage.delete(name)


def _is_left(storage: Storage, folder: str, before: float) -> bool:
    """Tell whether nobody has written below a folder since; parts of a partitioned output lie in folders of their own."""
    files, folders = storage.files(folder), storage.folders(folder)
    if not files and not folders:
        # Whoever is about to write makes the folder first; on an object store it is only a name, and has no time.
        return storage.local and storage.modified(folder) < before
    return all(storage.modified(name) < before for name in files) and all(
        _is_left(storage, name, before) for name in folders
    )


def _is_temporary(name: str) -> bool:
    """Tell whether a file is one of ours that was to be renamed when it was whole."""
    base = name.rsplit("/", 1)[-1]
    return base.startswith(".") and base.endswith(".tmp") and len(base.split(".")[-2]) == _TOKEN_LENGTH
