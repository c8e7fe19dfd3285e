"""A migrated, empty Airflow database, kept for the next home: migrating takes as long as all else together."""

from __future__ import annotations

import os
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

__all__ = ["restore", "save", "template_path"]


def template_path(airflow_version: str) -> Path:
    """Return where the template of an Airflow version is kept.

    :param airflow_version: the schema depends on nothing else.
    """
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache, "airflow-llm-provider", f"airflow-{airflow_version}.db")


def restore(template: Path, database: Path) -> bool:
    """Copy a template to a new home; return False when there is none.

    :param template: see `template_path`.
    :param database: the home's database, which must not exist.
    """
    if not template.exists():
        return False
    _copy(template, database)
    return True


def save(database: Path, template: Path) -> None:
    """Keep a freshly migrated database as template; a second writer does no harm.

    :param database: the home's database.
    :param template: see `template_path`.
    """
    template.parent.mkdir(parents=True, exist_ok=True)
    _copy(database, template)


def _copy(source: Path, target: Path) -> None:
    temporary = target.with_name(f"{target.name}.{os.getpid()}")
    # SQLite's own copy: a plain one would miss what still is in the write-ahead log.
    with closing(sqlite3.connect(source)) as reader, closing(sqlite3.connect(temporary)) as writer:
        reader.backup(writer)
    temporary.replace(target)


if __name__ == "__main__":
    save(Path(sys.argv[1]), Path(sys.argv[2]))
