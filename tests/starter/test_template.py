"""The kept database."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

from airflow_llm_provider.starter.template import restore, save, template_path

if TYPE_CHECKING:
    from pathlib import Path


def rows(path: Path) -> list[tuple[int]]:
    with closing(sqlite3.connect(path)) as database:
        return database.execute("select n from t order by n").fetchall()


class TestTemplate:
    def test_it_is_kept_per_version_in_the_users_cache(self, monkeypatch, tmp_path: Path) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert template_path("3.3.2") == tmp_path / "airflow-llm-provider" / "airflow-3.3.2.db"

    def test_nothing_is_restored_when_there_is_none(self, tmp_path: Path) -> None:
        assert restore(tmp_path / "absent.db", tmp_path / "new.db") is False
        assert not (tmp_path / "new.db").exists()

    def test_what_is_still_in_the_write_ahead_log_is_kept(self, tmp_path: Path) -> None:
        source, template, new = (tmp_path / name for name in ("source.db", "cache/template.db", "new.db"))
        with closing(sqlite3.connect(source)) as database:
            database.execute("pragma journal_mode=wal")
            database.execute("create table t (n integer)")
            database.execute("insert into t values (1)")
            database.commit()
            save(source, template)
            database.execute("insert into t values (2)")
            database.commit()

        assert restore(template, new) is True

        assert rows(new) == [(1,)]
        assert [path.name for path in template.parent.iterdir()] == ["template.db"]
