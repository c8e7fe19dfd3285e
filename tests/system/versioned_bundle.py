"""A DAG bundle that keeps every version of its files, as one of a Git repository does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.dag_processing.bundles.base import BaseDagBundle

_NEWEST = "newest"


class VersionedBundle(BaseDagBundle):
    """Serves the folder of a version, or the newest one.

    :param root: folder of the versions.
    """

    supports_versioning = True

    def __init__(self, *, root: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._root = Path(root)
        self.refresh()

    @property
    def path(self) -> Path:
        """Folder of the DAG files."""
        return self._root / self.get_current_version()

    def get_current_version(self) -> str:
        """Name the version."""
        return self.version or self._newest

    def refresh(self) -> None:
        """Look which version is the newest; until then files and version stay as they are, together."""
        self._newest = (self._root / _NEWEST).resolve().name


def publish(root: Path, version: str, name: str, source: str) -> None:
    """Add a version, which is the newest from now on.

    :param root: folder of the versions.
    :param version: its name.
    :param name: of its one DAG file.
    :param source: of that file.
    """
    folder = root / version
    folder.mkdir(parents=True)
    (folder / name).write_text(source, encoding="utf-8")
    link = root / f".{version}"
    link.symlink_to(version)
    link.replace(root / _NEWEST)
