"""Every snippet of README.md and docs/ is run, parsed or looked up; what nobody can check is not there."""

from __future__ import annotations

import configparser
import importlib
import importlib.util
import json
import re
import shlex
import subprocess
import sys
import tomllib
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
import yaml

from airflow_llm_provider import CompletionSpec
from airflow_llm_provider.get_provider_info import get_provider_info
from airflow_llm_provider.hooks.endpoint import Endpoint
from airflow_llm_provider.prices import Pricer

pytest_plugins = ["pytester"]

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_llm_provider.testing.scripted_server import ScriptedServer

_ASSIGNMENT = re.compile(r"[A-Z_][A-Z0-9_]*=.*")


@pytest.fixture
def endpoint_in_environment(scripted_server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a reader has set before: an endpoint and a connection to it."""
    monkeypatch.setenv("LLM_BASE_URL", scripted_server.base_url)
    monkeypatch.setenv("LLM_API_KEY", "sk-of-the-docs")
    monkeypatch.setenv("LLM_MODEL", "gpt-4o-mini")
    connection = {"conn_type": "llm", "host": scripted_server.base_url, "password": "sk-of-the-docs"}
    monkeypatch.setenv("AIRFLOW_CONN_LLM_DEFAULT", json.dumps(connection))


class TestPython:
    def test_of_a_page_runs_from_top_to_bottom(
        self,
        scripts: list[Any],
        endpoint_in_environment: None,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.chdir(tmp_path)
        session: dict[str, Any] = {"__name__": "snippet"}
        for block in scripts:
            exec(compile(block.code, str(block), "exec"), session)  # noqa: S102 -- our own pages

    def test_of_a_dag_is_a_whole_file_that_airflow_takes(self, dag_block: Any, tmp_path: Path) -> None:
        from airflow.serialization.serialized_objects import DagSerialization

        # Airflow 3.1 has it elsewhere.
        home = "dag_processing" if importlib.util.find_spec("airflow.dag_processing.dagbag") else "models"
        dag_bag = importlib.import_module(f"airflow.{home}.dagbag").DagBag
        file = tmp_path / "snippet_dag.py"
        file.write_text(dag_block.code, encoding="utf-8")
        bag = dag_bag(str(file))
        assert bag.import_errors == {}
        declared = set(re.findall(r'\bDAG\(\s*"(\w+)"', dag_block.code)) or set(
            re.findall(r'= tickets\("(\w+)"', dag_block.code)
        )
        assert set(bag.dags) == declared
        for dag in bag.dags.values():
            assert DagSerialization.to_dict(dag)
            assert dag.tasks

    def test_of_a_file_is_that_file(self, copied_block: Any, root: Path) -> None:
        assert copied_block.code == (root / copied_block.role).read_text(encoding="utf-8")

    def test_of_tests_passes(self, test_blocks: list[Any], pytester: pytest.Pytester) -> None:
        pytester.makepyfile(**{f"test_snippet_{n}": block.code for n, block in enumerate(test_blocks)})
        done = pytester.runpytest_inprocess("-p", "no:llmock", "-p", "no:cacheprovider")
        wanted = sum(len(re.findall(r"^ *def test_", block.code, re.MULTILINE)) for block in test_blocks)
        done.assert_outcomes(passed=wanted)


class TestJson:
    def test_parses(self, json_block: Any) -> None:
        assert isinstance(json.loads(json_block.code), (dict, list))

    def test_of_a_connection_is_one(self, connection_block: Any) -> None:
        from airflow.sdk import Connection

        assert_connects(Connection.from_json(connection_block.code, conn_id="llm_default"))

    def test_of_pools_can_be_imported(self, pools_block: Any, tmp_path: Path) -> None:
        """By the rules of the command: a name, a number of slots, no other fields."""
        for name, pool in json.loads(pools_block.code).items():
            assert name
            assert isinstance(pool["slots"], int)
            assert pool.keys() == {"slots", "description", "include_deferred"}


class TestYaml:
    def test_of_the_chart_sets_options_that_there_are(self, yaml_block: Any) -> None:
        from airflow.configuration import conf

        assert yaml_block.role == "helm"
        values = yaml.safe_load(yaml_block.code)
        named = {(section, option) for section, options in values["config"].items() for option in options}
        for secret in values["secret"]:
            _, section, option = secret["envName"].lower().split("__")
            named.add((section, option))
        ours = {("llm", option) for option in get_provider_info()["config"]["llm"]["options"]}
        assert [pair for pair in named - ours if conf.get(*pair, fallback=None) is None] == []


class TestText:
    def test_of_connection_uris_are_such(self, uri_block: Any) -> None:
        from airflow.sdk import Connection

        for line in uri_block.code.split():
            assert_connects(Connection.from_uri(line, conn_id="llm_default"))


class TestIni:
    def test_has_options_that_there_are(self, ini_block: Any) -> None:
        parser = configparser.ConfigParser()
        parser.read_string(ini_block.code)
        known = get_provider_info()["config"]
        for section in parser.sections():
            assert set(parser[section]) <= set(known[section]["options"])


class TestJinja:
    def test_of_a_prompt_compiles(self, jinja_block: Any) -> None:
        from airflow_llm_provider.prompt import PromptTemplate

        if jinja_block.role == "prompt":
            assert PromptTemplate(CompletionSpec(model="m", prompt=jinja_block.code)).columns
        else:
            from jinja2 import Environment

            Environment(autoescape=True).parse(jinja_block.code)


class TestBash:
    def test_calls_only_what_is_there(self, bash_block: Any, root: Path) -> None:
        lines = bash_block.code.replace("\\\n", " ").splitlines()
        for line in filter(None, lines):
            words = shlex.split(line, comments=True)
            while words and _ASSIGNMENT.fullmatch(words[0]):
                words = words[1:]
            check = {
                "airflow": check_airflow,
                "docker": check_docker,
                "make": check_make,
                "pip": check_pip,
                "python": check_python,
            }[words[0]]
            check(words[1:], root)


def assert_connects(connection: Any) -> None:
    endpoint = Endpoint.from_connection(connection)
    assert urlsplit(endpoint.base_url).hostname
    assert endpoint.ignored == ()
    Pricer(endpoint.prices)


def check_docker(words: list[str], root: Path) -> None:
    services = yaml.safe_load((root / "docker-compose.yaml").read_text(encoding="utf-8"))["services"]
    assert words[0] == "compose"
    assert words[1] in {"down", "exec", "logs", "up"}
    rest = [word for word in words[2:] if word not in {"--build", "--detach", "--volumes", "--scale"}]
    named = rest[:1] if words[1] == "exec" else [word.partition("=")[0] for word in rest]
    assert set(named) <= set(services)


def check_make(words: list[str], root: Path) -> None:
    targets = re.findall(r"^([a-z-]+):", (root / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(words) <= set(targets)


def check_airflow(words: list[str], root: Path) -> None:
    from airflow.cli.cli_parser import get_parser

    arguments = get_parser().parse_args(words)
    if words[:2] == ["tasks", "clear"]:
        # Airflow looks for it as plain text, and for dates as midnights.
        assert arguments.task_regex in {"label.split", "label.complete", "label.merge"}
        assert arguments.end_date - arguments.start_date == timedelta(days=1)
    if words[:2] == ["connections", "add"]:
        from airflow.sdk import Connection

        fields = ("type", "host", "password", "extra")
        given = {name: getattr(arguments, f"conn_{name}") for name in fields}
        assert_connects(
            Connection(
                conn_id=arguments.conn_id,
                conn_type=given["type"],
                host=given["host"],
                password=given["password"] and "sk-given",
                extra=given["extra"],
            )
        )


def check_pip(words: list[str], root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = re.findall(r"\[([a-z,]+)\]", words[1])
    assert words[0] in {"install", "wheel"}
    assert words[1].startswith(".")
    assert {extra for group in extras for extra in group.split(",")} <= set(project["optional-dependencies"])


def check_python(words: list[str], root: Path) -> None:
    assert words[0] == "-m"
    assert importlib.util.find_spec(words[1]) is not None
    shown = subprocess.run(
        [sys.executable, "-m", words[1], "--help"], capture_output=True, text=True, check=True, timeout=60
    )
    for word in words[2:]:
        assert not word.startswith("-") or word in shown.stdout
