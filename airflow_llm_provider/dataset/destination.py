"""What lies in a destination: ours, or someone else's."""

from __future__ import annotations

import orjson

from airflow_llm_provider.dataset.layout import INTENT, MANIFEST, Layout
from airflow_llm_provider.dataset.urls import public_uri
from airflow_llm_provider.errors import LLMInputError, LLMStateError

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


def check_destination(layout: Layout) -> None:
    """Make sure that every file which readers of the folder would take for output is ours.

    :raises LLMInputError: naming the others.
    """
    data = [name for name in layout.storage.files("") if name.endswith(".parquet") and name[0] not in "._"]
    foreign = sorted(set(data) - own_parts(layout)) if data else []
    if foreign:
        more = f" and {len(foreign) - _MOST_NAMED} more" if len(foreign) > _MOST_NAMED else ""
        raise LLMInputError(
            f"the destination {public_uri(layout.destination)} holds Parquet files of someone else, which readers "
            f"would take for output: {', '.join(foreign[:_MOST_NAMED])}{more}; choose a folder of its own"
        )
