"""Airflow's configuration, computed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_llm_provider.starter.environment import AirflowSettings, Secrets, airflow_environment

SECRETS = Secrets(fernet_key="fernet", jwt_secret="jwt", api_secret="api")


def settings(**changes) -> AirflowSettings:
    defaults = {
        "home": Path("/srv/my home"),
        "port": 8090,
        "dag_folders": (Path("/srv/my dags"),),
    }
    return AirflowSettings(**{**defaults, **changes})


def environment(*, inherited=None, extra=None, **changes) -> dict[str, str]:
    return airflow_environment(settings(**changes), SECRETS, inherited=inherited or {}, extra=extra)


class TestAirflowEnvironment:
    def test_everything_lies_in_the_home(self) -> None:
        env = environment()
        assert env["AIRFLOW_HOME"] == "/srv/my home"
        assert env["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"].startswith("sqlite:////srv/my home/airflow.db")
        assert env["AIRFLOW__LOGGING__BASE_LOG_FOLDER"] == "/srv/my home/logs"

    def test_no_connection_to_the_database_outlives_its_use(self) -> None:
        assert environment()["AIRFLOW__DATABASE__SQL_ALCHEMY_POOL_ENABLED"] == "False"

    def test_every_address_is_loopback(self) -> None:
        env = environment()
        assert env["AIRFLOW__API__HOST"] == "127.0.0.1"
        assert env["AIRFLOW__API__BASE_URL"] == "http://127.0.0.1:8090"
        assert env["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"] == "http://127.0.0.1:8090/execution/"

    def test_secrets_are_the_homes_own(self) -> None:
        env = environment()
        assert env["AIRFLOW__CORE__FERNET_KEY"] == "fernet"
        assert env["AIRFLOW__API_AUTH__JWT_SECRET"] == "jwt"
        assert env["AIRFLOW__API__SECRET_KEY"] == "api"

    def test_another_airflows_settings_do_not_leak_in(self) -> None:
        env = environment(
            inherited={
                "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_CMD": "cat /etc/production",
                "AIRFLOW_CONFIG": "/etc/airflow.cfg",
                "AIRFLOW_CONN_LLM_DEFAULT": "llm://production",
                "PYTHONDONTWRITEBYTECODE": "1",
                "PATH": "/bin",
            }
        )
        assert env["PATH"] == "/bin"
        for name in ("AIRFLOW_CONFIG", "AIRFLOW_CONN_LLM_DEFAULT", "PYTHONDONTWRITEBYTECODE"):
            assert name not in env
        assert "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_CMD" not in env

    def test_a_proxy_is_not_asked_for_loopback_addresses(self) -> None:
        env = environment(inherited={"NO_PROXY": "intranet, 127.0.0.1"})
        assert env["NO_PROXY"] == "intranet,127.0.0.1,localhost"
        assert env["no_proxy"] == "127.0.0.1,localhost"

    def test_extra_variables_win(self) -> None:
        env = environment(extra={"AIRFLOW__CORE__PARALLELISM": "9", "LLM_MODEL": "m"})
        assert env["AIRFLOW__CORE__PARALLELISM"] == "9"
        assert env["LLM_MODEL"] == "m"

    def test_every_folder_is_a_bundle(self) -> None:
        env = environment(dag_folders=(Path("/a b"), Path("/c")), parse_interval=3)
        bundles = json.loads(env["AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST"])
        assert [bundle["name"] for bundle in bundles] == ["dags-folder", "dags-1"]
        assert [bundle["kwargs"] for bundle in bundles] == [
            {"path": "/a b", "refresh_interval": 3},
            {"path": "/c", "refresh_interval": 3},
        ]

    def test_the_callers_environment_is_not_changed(self) -> None:
        inherited = {"PATH": "/bin"}
        environment(inherited=inherited)
        assert inherited == {"PATH": "/bin"}


class TestAirflowSettings:
    @pytest.mark.parametrize("home", ["/srv/a?b", "/srv/100%", "/srv/$HOME", "/srv/a#b"])
    def test_a_home_that_breaks_a_database_url_is_refused(self, home: str) -> None:
        with pytest.raises(ValueError, match=r"must not contain .* choose another folder"):
            settings(home=Path(home))

    def test_relative_paths_are_refused(self) -> None:
        with pytest.raises(ValueError, match=r"'dags' is a relative path"):
            settings(dag_folders=(Path("dags"),))

    def test_at_least_one_folder_and_one_task_are_needed(self) -> None:
        with pytest.raises(ValueError, match="dag_folders is empty"):
            settings(dag_folders=())
        with pytest.raises(ValueError, match="parallelism is 0: it must be at least 1"):
            settings(parallelism=0)
