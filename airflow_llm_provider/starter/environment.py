"""Airflow's whole configuration as environment variables: one pure function, so that a home needs no file to edit."""

from __future__ import annotations

import base64
import json
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["AirflowSettings", "Secrets", "airflow_environment", "bundles", "new_secrets"]

# What another Airflow on this machine may have left in the environment would point ours at its database.
_FOREIGN_PREFIXES = ("AIRFLOW__", "AIRFLOW_CONN_", "AIRFLOW_VAR_", "AIRFLOW_CTX_", "_AIRFLOW_")
_FOREIGN_NAMES = frozenset(
    {
        "AIRFLOW_HOME",
        "AIRFLOW_CONFIG",
        # Without compiled bytecode every process, and every task, compiles Airflow anew: 4 s instead of 1.5 s.
        "PYTHONDONTWRITEBYTECODE",
        # Keys reach tasks through a connection, which Airflow masks in logs.
        "LLM_API_KEY",
        "OPENAI_API_KEY",
    }
)
# A path becomes part of a database URL and of values in which Airflow expands variables.
_UNUSABLE_IN_HOME = "?#%$\n"
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class Secrets:
    """The keys of one home.

    :param fernet_key: encrypts connections in the database.
    :param jwt_secret: signs the tokens of REST clients and of tasks.
    :param api_secret: signs cookies and log links.
    """

    fernet_key: str
    jwt_secret: str
    api_secret: str


def new_secrets() -> Secrets:
    """Draw the keys of a new home."""
    return Secrets(
        fernet_key=base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
        jwt_secret=secrets.token_urlsafe(48),
        api_secret=secrets.token_urlsafe(48),
    )


@dataclass(frozen=True, kw_only=True)
class AirflowSettings:
    """What distinguishes one local Airflow from another.

    :param home: folder of database, logs and keys.
    :param port: port of the API server on 127.0.0.1.
    :param dag_folders: folders with DAG files, at least one.
    :param parallelism: tasks at once; one idle process each.
    :param parse_interval: seconds until a changed DAG file is parsed again.
    :param triggerer: whether deferred tasks can run.
    """

    home: Path
    port: int
    dag_folders: tuple[Path, ...]
    parallelism: int = 4
    parse_interval: float = 2.0
    triggerer: bool = False

    def __post_init__(self) -> None:
        """Refuse what Airflow would only stumble over later."""
        bad = sorted({char for char in str(self.home) if char in _UNUSABLE_IN_HOME})
        if bad:
            raise ValueError(
                f"home is {str(self.home)!r}: it must not contain {' '.join(map(repr, bad))}, because it becomes part "
                "of a database URL; choose another folder"
            )
        for folder in (self.home, *self.dag_folders):
            if not folder.is_absolute():
                raise ValueError(f"{str(folder)!r} is a relative path: give an absolute one")
        if not self.dag_folders:
            raise ValueError("dag_folders is empty: give at least one folder with DAG files")
        if self.parallelism < 1:
            raise ValueError(f"parallelism is {self.parallelism}: it must be at least 1")

    @property
    def database(self) -> Path:
        """The SQLite file."""
        return self.home / "airflow.db"

    @property
    def url(self) -> str:
        """Where UI, REST API and the API of running tasks answer."""
        return f"http://{_LOOPBACK}:{self.port}"


def airflow_environment(
    settings: AirflowSettings,
    keys: Secrets,
    *,
    inherited: Mapping[str, str],
    extra: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Compute the environment of every Airflow process of one home.

    :param settings: what distinguishes this Airflow.
    :param keys: of the home.
    :param inherited: environment of the calling process; settings of other Airflows in it are left out.
    :param extra: variables that win over everything computed here.
    """
    env = {
        name: value
        for name, value in inherited.items()
        if name not in _FOREIGN_NAMES and not name.startswith(_FOREIGN_PREFIXES)
    }
    env["AIRFLOW_HOME"] = str(settings.home)
    # A proxy for the internet must not be asked for this machine's own ports.
    for name in ("NO_PROXY", "no_proxy"):
        env[name] = _with_loopback(env.get(name, ""))
    for section, options in _options(settings, keys).items():
        for option, value in options.items():
            env[f"AIRFLOW__{section.upper()}__{option.upper()}"] = value
    return env | dict(extra or {})


def _options(settings: AirflowSettings, keys: Secrets) -> dict[str, dict[str, str]]:
    return {
        "core": {
            "executor": "LocalExecutor",
            "parallelism": str(settings.parallelism),
            "max_active_tasks_per_dag": str(max(16, settings.parallelism)),
            "load_examples": "False",
            "fernet_key": keys.fernet_key,
            "dags_folder": str(settings.dag_folders[0]),
            "dags_are_paused_at_creation": "True",
            "execution_api_server_url": f"{settings.url}/execution/",
            "auth_manager": "airflow.api_fastapi.auth.managers.simple.simple_auth_manager.SimpleAuthManager",
            "simple_auth_manager_all_admins": "True",
            "test_connection": "Enabled",
        },
        "database": {
            # Several processes write to one SQLite file: wait for the lock instead of failing after 5 s.
            "sql_alchemy_conn": f"sqlite:///{settings.database}?timeout=60",
            # A request that failed in the middle may leave a connection that sees the database as it was then, and can
            # write no more. Kept for the next requests, it fails each that gets it.
            "sql_alchemy_pool_enabled": "False",
            "load_default_connections": "False",
        },
        "api": {
            "host": _LOOPBACK,
            "port": str(settings.port),
            "base_url": settings.url,
            "workers": "1",
            "secret_key": keys.api_secret,
        },
        "api_auth": {"jwt_secret": keys.jwt_secret},
        "logging": {"base_log_folder": str(settings.home / "logs"), "colored_console_log": "False"},
        "scheduler": {
            "scheduler_heartbeat_sec": "1",
            "job_heartbeat_sec": "1",
            # The pause between two looks at the database when there is nothing to do; half a second is felt less
            # than the second of the default, and costs 2 % of a core.
            "scheduler_idle_sleep_time": "0.5",
            "enable_health_check": "False",
            # A task whose process was killed together with its supervisor is noticed after this time.
            "task_instance_heartbeat_timeout": "60",
        },
        "workers": {
            # How soon a running task learns that it was cleared or marked failed.
            "min_heartbeat_interval": "1",
            # A task gives up after five calls that take longer, and a busy machine is slow but not broken.
            "execution_api_timeout": "30",
        },
        "dag_processor": {
            "refresh_interval": str(max(1, round(settings.parse_interval))),
            "bundle_refresh_check_interval": "1",
            # A changed file does not wait for this; parsing unchanged ones takes a third of a core.
            "min_file_process_interval": "30",
            "parsing_processes": "1",
            "print_stats_interval": "0",
            "dag_bundle_config_list": json.dumps(bundles(settings.dag_folders, settings.parse_interval)),
        },
        "usage_data_collection": {"enabled": "False"},
    }


def bundles(folders: Sequence[Path], interval: float) -> list[dict[str, object]]:
    """One bundle per folder; the first keeps Airflow's default name, which is what its UI shows."""
    return [
        {
            "name": "dags-folder" if index == 0 else f"dags-{index}",
            "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
            "kwargs": {"path": str(folder), "refresh_interval": max(1, round(interval))},
        }
        for index, folder in enumerate(folders)
    ]


def _with_loopback(hosts: str) -> str:
    known = [host.strip() for host in hosts.split(",") if host.strip()]
    return ",".join([*known, *(host for host in (_LOOPBACK, "localhost") if host not in known)])
