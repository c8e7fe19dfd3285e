"""What lies in a destination: ours, or someone else's."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import orjson

from airflow_llm_provider.dataset.files.layout import INTENT, MANIFEST, Layout
from airflow_llm_provider.dataset.files.urls import public_uri
from airflow_llm_provider.errors import LLMInputError, LLMStateError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fsspec import AbstractFileSystem

_MOST_NAMED = 5


def read_json(layout: Layout, name: str) -> dict[str, object] | None:
    """Read one of our JSON files; ``None`` only when there is none.

    :raises LLMStateError: when it cannot be read or is damaged.
    """
    data = layout.storage.read_bytes(name)
    if data is None:
        return None
    try:
        value = orjson.loads(data)
    except ValueError as error:
        raise LLMStateError(
            f"{public_uri(layout.uri(name))} is damaged: delete it, and clear the split and everything after it"
        ) from error
    return value if isinstance(value, dict) else {}


def own_parts(layout: Layout) -> set[str]:
    """Return the names of the part files that earlier merges wrote, or were about to write."""
    names: set[str] = set()
    for source in (MANIFEST, INTENT):
        value = read_json(layout, source) or {}
        files = value.get("files")
        for file in files if isinstance(files, list) else []:
            names.add(str(file["name"] if isinstance(file, dict) else file))
    return names


def folders_above(names: Iterable[str]) -> set[str]:
    """Return the folders in which files lie, and those in which these do."""
    parts = (name.split("/")[:-1] for name in names)
    return {"/".join(part[:depth]) for part in parts for depth in range(1, len(part) + 1)}


def check_destination(layout: Layout) -> None:
    """Make sure that every file which readers of the folder would take for output is ours.

    :raises LLMInputError: naming the others.
    """
    data = _data(layout, "")
    partitions = [name for name in layout.storage.folders("") if "=" in name and name[0] not in "._"]
    own = own_parts(layout) if data or partitions else set()
    ours = folders_above(own)
    foreign = sorted(set(data) - own)
    for folder in partitions:
        # What readers would take for a partition, and no merge of ours has made.
        foreign += [] if folder in ours else _data_below(layout, folder)
    if foreign:
        more = f" and {len(foreign) - _MOST_NAMED} more" if len(foreign) > _MOST_NAMED else ""
        raise LLMInputError(
            f"the destination {public_uri(layout.destination)} holds Parquet files of someone else, which readers "
            f"would take for output: {', '.join(foreign[:_MOST_NAMED])}{more}; choose a folder of its own"
        )


def _data(layout: Layout, folder: str) -> list[str]:
    return [
        name
        for name in layout.storage.files(folder)
        if name.endswith(".parquet") and name.rsplit("/", 1)[-1][0] not in "._"
    ]


def _data_below(layout: Layout, folder: str) -> list[str]:
    below = [name for inner in layout.storage.folders(folder) for name in _data_below(layout, inner)]
    return [*_data(layout, folder), *below]


def check_apart(layout: Layout, fs: AbstractFileSystem, roots: Iterable[str], paths: Iterable[str]) -> None:
    """Make sure that no run reads what another one wrote.

    :param fs: filesystem of the source.
    :param roots: folders below which everything belongs to the source; the source itself when it is one file.
    :param paths: the source's files.
    :raises LLMInputError: when the source takes in the destination's folder, or Parquet files in it.
    """
    if not layout.storage.same_filesystem(fs):
        return
    # Two ways to one folder of a local disk, one of them over a link, are one folder.
    real = os.path.realpath if layout.storage.local else str
    own = real(layout.storage.path("")).strip("/")
    parents = {path.rpartition("/")[0] for path in paths if path.endswith(".parquet")}
    folders = {real(parent).strip("/") for parent in parents}
    if own in folders or f"{own}/".startswith(tuple(real(root).strip("/") + "/" for root in roots)):
        raise LLMInputError(
            f"the destination {public_uri(layout.destination)} and the source lie inside each other, so that the next run "
            "would read this one's output: give the destination a folder beside the source, or a source that names its "
            "files, as in /*.parquet"
        )
