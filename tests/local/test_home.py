"""The demo's folder."""

from __future__ import annotations

import re
from configparser import ConfigParser
from typing import TYPE_CHECKING

import pytest

from airflow_llm_provider.local.airflow.config_file import write_config
from airflow_llm_provider.local.demo.home import Home, default_dags
from airflow_llm_provider.local.errors import LocalError
from airflow_llm_provider.starter.endpoint import ModelEndpoint

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

    def test_a_plain_shell_reads_the_same_options_of_the_example_dags_from_airflow_cfg(
        self, tmp_path: Path
    ) -> None:
        home = Home(tmp_path / "up")
        environment = home.environment(ModelEndpoint(base_url="http://a/v1", model="gpt-4o-mini"))
        write_config(tmp_path / "airflow.cfg", environment)
        config = ConfigParser()
        config.read(tmp_path / "airflow.cfg")
        assert dict(config["llm_examples"]) == {"data": f"file://{home.data}", "model": "gpt-4o-mini"}
        for dag in default_dags().glob("*.py"):
            assert re.findall(r'conf\.get\(\s*"llm_examples", "(\w+)"', dag.read_text()) == ["data", "model"]


class TestDefaultDags:
    def test_the_example_dags_are_there(self) -> None:
        assert {path.name for path in default_dags().glob("*.py")} >= {
            "catalog_packages.py",
            "nightly_tickets.py",
        }
