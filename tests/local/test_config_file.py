"""What an `airflow` command in a plain shell finds in a home."""

from __future__ import annotations

import stat
from configparser import ConfigParser
from pathlib import Path

import pytest

from airflow_llm_provider.local.airflow.config_file import write_config
from airflow_llm_provider.local.errors import StartError
from airflow_llm_provider.starter.environment import AirflowSettings, airflow_environment, new_secrets


def read(path: Path) -> ConfigParser:
    """Read as Airflow does: with interpolation."""
    config = ConfigParser()
    config.read(path, encoding="utf-8")
    return config


class TestWriteConfig:
    def test_every_option_of_the_services_is_there(self, tmp_path: Path) -> None:
        settings = AirflowSettings(home=tmp_path, port=8090, dag_folders=(Path("/dags"),))
        env = airflow_environment(
            settings, new_secrets(), inherited={"PATH": "/bin"}, extra={"LLM_MODEL": "m"}
        )
        write_config(tmp_path / "airflow.cfg", env)
        config = read(tmp_path / "airflow.cfg")
        found = {
            f"AIRFLOW__{section}__{option}".upper(): value
            for section in config.sections()
            for option, value in config.items(section)
        }
        assert found == {name: value for name, value in env.items() if name.startswith("AIRFLOW__")}
        assert found["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"].endswith("?timeout=60")

    def test_nobody_else_reads_its_keys(self, tmp_path: Path) -> None:
        path = tmp_path / "airflow.cfg"
        path.touch(mode=0o644)
        write_config(path, {"AIRFLOW__CORE__FERNET_KEY": "secret"})
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert list(tmp_path.iterdir()) == [path]

    def test_a_percent_sign_stays_one(self, tmp_path: Path) -> None:
        path = tmp_path / "airflow.cfg"
        write_config(path, {"AIRFLOW__CORE__DAGS_FOLDER": "/100 %(x)s"})
        write_config(path, {"AIRFLOW__CORE__EXECUTOR": "LocalExecutor"})
        assert read(path).get("core", "dags_folder") == "/100 %(x)s"

    def test_what_somebody_added_stays(self, tmp_path: Path) -> None:
        path = tmp_path / "airflow.cfg"
        path.write_text("[llm]\nlimiter_url = redis://here\n[core]\nexecutor = Other\n")
        write_config(path, {"AIRFLOW__CORE__EXECUTOR": "LocalExecutor"})
        config = read(path)
        assert config.get("llm", "limiter_url") == "redis://here"
        assert config.get("core", "executor") == "LocalExecutor"

    @pytest.mark.parametrize("content", [b"no section = 1\n", b"[core]\nx = \xff\n"])
    def test_what_is_no_configuration_is_named(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "airflow.cfg"
        path.write_bytes(content)
        with pytest.raises(
            StartError, match=r"airflow\.cfg is not a configuration file of Airflow: mend or delete it"
        ):
            write_config(path, {})
        assert path.read_bytes() == content
