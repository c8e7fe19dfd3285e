"""The demo's folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_llm_provider.local.demo.home import Home, default_dags
from airflow_llm_provider.local.errors import LocalError

if TYPE_CHECKING:
    from pathlib import Path


class TestHome:
    def test_an_earlier_demo_is_removed(self, tmp_path: Path) -> None:
        home = Home(tmp_path / "demo")
        home.create(empty=True)
        (home.root / "old").touch()
        home.create(empty=True)
        assert not (home.root / "old").exists()

    def test_a_kept_home_is_left_as_it_is(self, tmp_path: Path) -> None:
        home = Home(tmp_path / "up")
        home.create(empty=False)
        (home.root / "old").touch()
        home.create(empty=False)
        assert (home.root / "old").exists()

    def test_a_folder_with_other_files_is_never_emptied(self, tmp_path: Path) -> None:
        (tmp_path / "thesis.txt").touch()
        with pytest.raises(LocalError, match="has files that no demo made: choose another folder"):
            Home(tmp_path).create(empty=True)
        assert (tmp_path / "thesis.txt").exists()

    def test_an_empty_folder_can_be_used(self, tmp_path: Path) -> None:
        Home(tmp_path).create(empty=True)


class TestDefaultDags:
    def test_the_example_dags_are_there(self) -> None:
        assert {path.name for path in default_dags().glob("*.py")} >= {
            "catalog_packages.py",
            "nightly_tickets.py",
        }
