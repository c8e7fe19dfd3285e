"""A walk through folders, one by one: fsspec's own leaves out what it may not read, without a word.

Links of a local disk are followed. One that leads nowhere is an error where a file would be taken: its rows would silently
be missing.
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fsspec.implementations.local import LocalFileSystem

from airflow_llm_provider.dataset.files.absence import other_cause
from airflow_llm_provider.dataset.files.urls import public_uri, reason
from airflow_llm_provider.errors import LLMInputError, LLMStateError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsspec import AbstractFileSystem

_MAGIC = re.compile(r"[*?\[]")

#: What fsspec calls pipes, sockets and devices: to open one may wait for ever.
_SPECIAL = "other"
#: What we call links that lead nowhere.
_DANGLING = "dangling"


class FileWalk:
    """Finds files.

    :param fs: their filesystem.
    """

    def __init__(self, fs: AbstractFileSystem) -> None:
        self._fs = fs
        #: Where the links lead that the walk is in.
        self._within: list[str] = []
        #: Real paths of folders that were reached over a link, and of which every file is taken, now and later.
        self.linked: set[str] = set()

    def find(self, path: str) -> tuple[str, list[dict[str, Any]]] | None:
        """Return the files that a path names, and the part of it that is no pattern; ``None``: there are none."""
        entry = self.info(path)
        if entry is not None:
            if entry["type"] == _SPECIAL:
                raise LLMInputError(f"{public_uri(path)} is neither a file nor a folder: give one of them")
            return (path, [entry]) if entry["type"] != "directory" else (path, list(self._below(path)))
        parts = path.split("/")
        magic = next((n for n, part in enumerate(parts) if self._is_pattern("/".join(parts[:n]), part)), None)
        if magic is None:
            return None
        root = "/".join(parts[:magic]) or ("/" if path.startswith("/") else "")
        matches = {entry["name"]: entry for entry in self._matching(root, parts[magic:])}
        return (root, list(matches.values())) if matches else None

    def _is_pattern(self, folder: str, part: str) -> bool:
        """Tell a pattern from a name that happens to have such characters."""
        return bool(_MAGIC.search(part)) and self.info(f"{folder}/{part}") is None

    def info(self, path: str) -> dict[str, Any] | None:
        """Look one path up; ``None`` only when nothing is there.

        :raises LLMStateError: when that cannot be told, or it is a link that leads nowhere.
        """
        try:
            entry: dict[str, Any] = self._fs.info(path)
        except FileNotFoundError as error:
            cause = other_cause(error)
            if cause is not None:
                raise LLMStateError(f"{public_uri(path)} could not be looked up: {reason(cause)}") from error
            self._check_links(path)
            return None
        except Exception as error:
            raise LLMStateError(f"{public_uri(path)} could not be looked up: {reason(error)}") from error
        return entry

    def entries(self, folder: str) -> list[dict[str, Any]]:
        """List a folder; what links lead to stands for them.

        :raises LLMStateError: when it cannot be listed.
        """
        try:
            entries: list[dict[str, Any]] = self._fs.ls(folder, detail=True)
        except FileNotFoundError:
            self._check_links(folder)
            return []
        except Exception as error:
            raise LLMStateError(f"{public_uri(folder)} could not be listed: {reason(error)}") from error
        own = folder.strip("/")
        return [
            self._followed(entry)
            for entry in entries
            if entry["name"].strip("/") != own and not entry["name"].endswith("/")
        ]

    def _check_links(self, path: str) -> None:
        """Raise when nothing is there because a link on the way leads nowhere."""
        if isinstance(self._fs, LocalFileSystem):
            for part in (Path(path), *Path(path).parents):
                if part.is_symlink() and not part.exists():
                    raise _leads_nowhere(str(part))

    def _followed(self, entry: dict[str, Any]) -> dict[str, Any]:
        if not entry.get("islink"):
            return entry
        try:
            target: dict[str, Any] = self._fs.info(entry["name"])
        except OSError:
            return {**entry, "type": _DANGLING}
        return target

    @contextmanager
    def _inside(self, folder: dict[str, Any]) -> Iterator[str]:
        """Go into a folder, but not for ever round in a circle of links."""
        if not folder.get("islink"):
            yield folder["name"]
            return
        target = os.path.realpath(folder["name"])
        if target in self._within:
            raise LLMInputError(
                f"{public_uri(folder['name'])} is a link to a folder that it lies in: remove it, or give a source that "
                "leaves it out"
            )
        self._within.append(target)
        yield folder["name"]
        self._within.pop()

    def _note_linked(self, folder: str) -> None:
        if self._within:
            self.linked.add(os.path.realpath(folder))

    def _below(self, folder: str) -> Iterator[dict[str, Any]]:
        self._note_linked(folder)
        for entry in self.entries(folder):
            if _name(entry)[0] in "._":
                continue
            if entry["type"] == "directory":
                with self._inside(entry) as inner:
                    yield from self._below(inner)
            elif _is_file(entry):
                yield entry

    def _matching(self, folder: str, parts: list[str]) -> Iterator[dict[str, Any]]:
        part, rest = parts[0], parts[1:]
        if part == "**":
            yield from self._anywhere(folder, rest)
            return
        if not self._is_pattern(folder, part):
            entry = self.info(f"{folder}/{part}")
            entries = [] if entry is None else [entry]
        else:
            entries = [entry for entry in self.entries(folder) if _matches(_name(entry), part)]
        for entry in entries:
            if entry["type"] != "directory":
                if not rest and _is_file(entry):
                    yield entry
                continue
            with self._inside(entry) as inner:
                yield from self._matching(inner, rest) if rest else self._below(inner)

    def _anywhere(self, folder: str, rest: list[str]) -> Iterator[dict[str, Any]]:
        self._note_linked(folder)
        if not rest:
            yield from self._below(folder)
            return
        yield from self._matching(folder, rest)
        for entry in self.entries(folder):
            if entry["type"] == "directory" and _name(entry)[0] not in "._":
                with self._inside(entry) as inner:
                    yield from self._anywhere(inner, rest)


def _is_file(entry: dict[str, Any]) -> bool:
    """Tell whether rows can be read from it.

    :raises LLMStateError: when it is a link that leads nowhere.
    """
    if entry["type"] == _DANGLING:
        raise _leads_nowhere(entry["name"])
    return bool(entry["type"] != _SPECIAL)


def _leads_nowhere(path: str) -> LLMStateError:
    return LLMStateError(
        f"{path} is a link to {Path(path).readlink()}, which is not there: mend or remove the link"
    )


def _name(entry: dict[str, Any]) -> str:
    return str(entry["name"]).rstrip("/").rsplit("/", 1)[-1]


def _matches(name: str, pattern: str) -> bool:
    hidden = name[0] in "._" and pattern[0] != name[0]
    return not hidden and fnmatchcase(name, pattern)
