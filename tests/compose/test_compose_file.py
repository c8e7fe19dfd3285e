"""What `docker-compose.yaml` is and must not be, without running it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import pytest
import yaml

from airflow_llm_provider.starter.pools import POOL, pools
from tests.compose.compose_file import COMPOSE_FILE, ComposeFile, interpolate

ROOT = COMPOSE_FILE.parent
IMAGE = "airflow-llm-provider:local"
AIRFLOW = ("api-server", "scheduler", "dag-processor", "triggerer", "worker")


@pytest.fixture(scope="module")
def file() -> ComposeFile:
    """The file as it is for somebody who has set nothing."""
    return ComposeFile.read({})


class TestInterpolation:
    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("$A", "a"),
            ("${A}", "a"),
            ("${NONE}", ""),
            ("${A:-d}", "a"),
            ("${EMPTY:-d}", "d"),
            ("${EMPTY-d}", ""),
            ("${NONE-d}", "d"),
            ("${A:+x}", "x"),
            ("${EMPTY:+x}", ""),
            ("$${A}", "${A}"),
            ("127.0.0.1:${NONE:-8080}:8080", "127.0.0.1:8080:8080"),
        ],
    )
    def test_is_that_of_the_specification(self, text: str, value: str) -> None:
        assert interpolate(text, {"A": "a", "EMPTY": ""}) == value

    @pytest.mark.parametrize("text", ["${NONE:?say it}", "${EMPTY:?say it}", "${NONE?say it}"])
    def test_says_what_is_required(self, text: str) -> None:
        with pytest.raises(KeyError, match="say it"):
            interpolate(text, {"EMPTY": ""})


class TestSchema:
    def test_is_that_of_the_specification(self) -> None:
        """Against the Compose Specification's own JSON schema, which the checker carries."""
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "check_jsonschema",
                "--builtin-schema",
                "vendor.compose-spec",
                str(COMPOSE_FILE),
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout

    def test_every_name_is_declared(self, file: ComposeFile) -> None:
        for service in file.services.values():
            assert service.depends_on.keys() <= file.services.keys()
            named = {source for source, _ in service.volumes if not source.startswith(".")}
            assert named <= file.content["volumes"].keys()


class TestServices:
    def test_are_all_that_airflow_needs(self, file: ComposeFile) -> None:
        assert set(file.services) == {*AIRFLOW, "postgres", "redis", "secrets", "init"}
        assert file.services["worker"].replicas == 2

    def test_that_stay_have_a_health_check_and_come_again(self, file: ComposeFile) -> None:
        for service in file.services.values():
            assert service.once or (service.health and service.raw["restart"] == "unless-stopped"), (
                service.name
            )

    def test_wait_for_what_they_need(self, file: ComposeFile) -> None:
        for name in AIRFLOW:
            assert file.services[name].depends_on["init"] == "service_completed_successfully"
        assert file.services["init"].depends_on == {"postgres": "service_healthy", "redis": "service_healthy"}

    def test_find_postgres_there_when_it_answers_by_the_network(self, file: ComposeFile) -> None:
        """While it makes the database it listens on its socket only, and a migration begun then would fail the start."""
        test = file.services["postgres"].raw["healthcheck"]["test"]
        assert test[test.index("--host") + 1] == "127.0.0.1"

    def test_share_what_they_must(self, file: ComposeFile) -> None:
        """DAGs, logs, data and secrets; a file destination is of no use when workers do not share it."""
        shared = {"./dags", "logs", "data", "secrets"}
        for name in AIRFLOW:
            mounted = {source for source, _ in file.services[name].volumes}
            assert mounted >= (shared - {"data"} if name == "api-server" else shared), name

    def test_open_one_port_on_loopback(self, file: ComposeFile) -> None:
        ports = {name: service.ports for name, service in file.services.items() if service.ports}
        assert ports == {"api-server": ["127.0.0.1:8080:8080"]}
        assert not any("network_mode" in service.raw for service in file.services.values())


class TestSecrets:
    def test_none_is_in_the_file(self) -> None:
        """Whatever is called a secret is a command that reads a file, a file, or the environment's, empty unless set."""
        harmless = re.compile(r"(cat )?/opt/airflow/(service-)?secrets/\w+(\.json)?|\$\{\w+:-\}")
        raw = yaml.safe_load(COMPOSE_FILE.read_text(encoding="utf-8"))
        suspicious = re.compile(r"PASSWORD|SECRET|KEY|TOKEN|FERNET|CONN|BROKER_URL_|LIMITER_URL_")
        found = {
            (name, variable): value
            for name, service in raw["services"].items()
            for variable, value in service.get("environment", {}).items()
            if suspicious.search(variable) and not harmless.fullmatch(str(value))
        }
        named = ("AIRFLOW__DATABASE__LOAD_DEFAULT_CONNECTIONS", "CONNECTION_CHECK_MAX_COUNT")
        assert {variable for _, variable in found} <= set(named)

    def test_urls_name_no_password(self) -> None:
        for url in re.findall(r"\w+://[^\s]+@", COMPOSE_FILE.read_text(encoding="utf-8")):
            assert "{password}@" in url

    def test_the_models_key_goes_to_one_service_only(self) -> None:
        file = ComposeFile.read({"LLM_API_KEY": "sk-mine"})
        having = [
            name for name, service in file.services.items() if "sk-mine" in json.dumps(service.environment)
        ]
        assert having == ["init"]

    def test_a_running_service_cannot_write_them(self, file: ComposeFile) -> None:
        def mode(service: Any) -> list[str]:
            return [volume for volume in service.raw["volumes"] if volume.split(":")[0].endswith("secrets")]

        for name, service in file.services.items():
            writable = [volume for volume in mode(service) if not volume.endswith(":ro")]
            # Airflow opens the file of the UI's passwords for writing.
            assert not writable or name in {"secrets", "api-server"}, name


class TestSettings:
    def test_let_a_message_outlive_the_longest_shard_and_a_worker_be_missed_soon(
        self, file: ComposeFile
    ) -> None:
        environment = file.services["worker"].environment
        assert environment["AIRFLOW__CELERY__TASK_ACKS_LATE"] == "True"
        assert environment["AIRFLOW__CELERY__WORKER_PREFETCH_MULTIPLIER"] == "1"
        assert int(environment["AIRFLOW__CELERY_BROKER_TRANSPORT_OPTIONS__VISIBILITY_TIMEOUT"]) >= 86_400
        assert int(environment["AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT"]) < 300

    def test_are_the_same_for_every_airflow_service(self, file: ComposeFile) -> None:
        environments = [dict(file.services[name].environment) for name in AIRFLOW]
        assert environments[AIRFLOW.index("worker")].pop("DUMB_INIT_SETSID") == "0"
        assert all(environment == environments[0] for environment in environments)
        assert environments[0].items() <= file.services["init"].environment.items()

    def test_workers_run_all_shards_that_the_pool_lets_run(self, file: ComposeFile) -> None:
        pool = pools()[POOL]
        worker = file.services["worker"]
        tasks = worker.replicas * int(worker.environment["AIRFLOW__CELERY__WORKER_CONCURRENCY"])
        assert tasks >= pool["slots"]


class TestImage:
    def test_is_built_once_for_all_and_never_looked_for_elsewhere(self, file: ComposeFile) -> None:
        """Compose builds side by side, and a second build of a name that the first has just made fails."""
        ours = {name: each.raw for name, each in file.services.items() if each.raw["image"] == IMAGE}
        assert set(ours) == {*AIRFLOW, "secrets", "init"}
        assert [name for name, raw in ours.items() if "build" in raw] == ["secrets"]
        assert {raw["pull_policy"] for raw in ours.values()} == {"never"}

    def test_does_not_look_for_a_database_before_there_is_one(self, file: ComposeFile) -> None:
        """Its entry point does, before every command, unless it is told not to."""
        waiting = [
            name
            for name, service in file.services.items()
            if service.raw["image"] == IMAGE and service.environment.get("CONNECTION_CHECK_MAX_COUNT") != "0"
        ]
        assert all(
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_CMD" in file.services[name].environment for name in waiting
        )
        assert set(waiting) == {*AIRFLOW, "init"}

    def test_copies_only_what_is_there_and_sent(self) -> None:
        text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
        sent = {
            line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")
        }
        copied = [
            source
            for line in re.findall(r"^COPY (?:--\S+ )*(.+)$", text, re.MULTILINE)
            for source in line.split()[:-1]
        ]
        assert copied
        assert sent <= set(copied)
        assert all((ROOT / source).exists() for source in copied)
        assert all(any((ROOT / source).is_relative_to(ROOT / name) for name in sent) for source in copied)

    def test_has_every_folder_of_a_volume_with_its_user(self, file: ComposeFile) -> None:
        text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
        made = set(re.findall(r"/[\w/-]+", re.search(r"mkdir -p (.+?)\\?\n", text)[1]))  # type: ignore[index]
        mounted = {
            target
            for service in file.services.values()
            if service.raw["image"] == IMAGE
            for source, target in service.volumes
            if not source.startswith(".")
        }
        assert mounted - made == {"/opt/airflow/logs"}, "Airflow's own image has the folder of the logs only"
