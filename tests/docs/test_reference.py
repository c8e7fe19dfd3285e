"""Tables of arguments, columns, statuses and names say what the code says."""

from __future__ import annotations

import dataclasses
import inspect
import re
import tomllib
from importlib import import_module
from typing import TYPE_CHECKING, Any, get_args

import pytest
import yaml

import airflow_llm_provider
from airflow_llm_provider import (
    CompleteShardOperator,
    CompletionSpec,
    CountFilesOperator,
    ListFilesOperator,
    MergeShardsOperator,
    PlanShardsOperator,
    ShardDatasetOperator,
    errors,
    llm_map,
)
from airflow_llm_provider.dataset.outcomes.columns import METADATA
from airflow_llm_provider.engine import events
from airflow_llm_provider.engine.status import PAID_STATUSES, RowStatus
from airflow_llm_provider.get_provider_info import get_provider_info
from airflow_llm_provider.hooks.endpoint import LLM_EXTRAS
from airflow_llm_provider.hooks.form import CONN_FIELDS
from airflow_llm_provider.testing import plugin
from airflow_llm_provider.testing.dag_runs import DagRunner, DagTestRun
from airflow_llm_provider.testing.scripted_server import ScriptedServer
from airflow_llm_provider.testing.server.http import Fault
from airflow_llm_provider.testing.server.rule import Rule
from airflow_llm_provider.xcom import RunSummary, ShardState

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_TEMPLATED = {*ListFilesOperator.template_fields, *CompleteShardOperator.template_fields}
_CALLABLES: dict[str, tuple[Callable[..., Any], set[str]]] = {
    "docs/operators/llm_map.md": (llm_map, _TEMPLATED),
    "docs/operators/shard.md": (ShardDatasetOperator.__init__, set(ShardDatasetOperator.template_fields)),
    "docs/operators/complete.md": (
        CompleteShardOperator.__init__,
        set(CompleteShardOperator.template_fields),
    ),
    "docs/operators/merge.md": (MergeShardsOperator.__init__, set(MergeShardsOperator.template_fields)),
}


def code(cell: str) -> list[str]:
    """Return the code spans of a cell."""
    return re.findall(r"`([^`]+)`", cell)


def written(parameter: inspect.Parameter | dataclasses.Field[Any]) -> str:
    """Return a default as the docs write it."""
    default = parameter.default
    if default in (inspect.Parameter.empty, dataclasses.MISSING):
        factory = getattr(parameter, "default_factory", dataclasses.MISSING)
        return "required" if factory is dataclasses.MISSING else f"`{factory()!r}`"
    return "`" + repr(default).replace("'", '"') + "`"


class TestArguments:
    @pytest.mark.parametrize("path", _CALLABLES)
    def test_are_those_of_the_code_with_their_defaults(self, pages: dict[str, Any], path: str) -> None:
        function, templated = _CALLABLES[path]
        expected = {
            f"`{name}`": (written(parameter), "yes" if name in templated else "no")
            for name, parameter in inspect.signature(function).parameters.items()
            if name != "self" and parameter.kind is parameter.KEYWORD_ONLY
        }
        table = {row[0]: (row[1], row[2]) for row in pages[path].table("Arguments")}
        assert table == expected
        assert list(table) == list(expected)

    @pytest.mark.parametrize("operator", [CountFilesOperator, PlanShardsOperator])
    def test_of_a_split_by_file_are_those_of_the_code(self, pages: dict[str, Any], operator: Any) -> None:
        expected = [
            (f"`{name}`", written(parameter), "yes" if name in operator.template_fields else "no")
            for name, parameter in inspect.signature(operator.__init__).parameters.items()
            if parameter.kind is parameter.KEYWORD_ONLY
        ]
        rows = pages["docs/operators/split_by_file.md"].table(operator.__name__)
        assert [tuple(row[:3]) for row in rows] == expected

    def test_of_the_spec_are_its_fields(self, pages: dict[str, Any]) -> None:
        table = {row[0]: row[1] for row in pages["docs/spec.md"].table("Fields")}
        assert table == {f"`{field.name}`": written(field) for field in dataclasses.fields(CompletionSpec)}


class TestDeploy:
    def test_options_for_celery_are_those_of_the_compose_file(
        self, pages: dict[str, Any], root: Path
    ) -> None:
        services = yaml.safe_load((root / "docker-compose.yaml").read_text(encoding="utf-8"))["services"]
        environment = services["worker"]["environment"]
        for option, value, _ in pages["docs/how-to/deploy.md"].table("Celery"):
            section, name = re.fullmatch(r"`\[(\w+)\] (\w+)`", option).groups()  # type: ignore[union-attr]
            told = environment[f"AIRFLOW__{section.upper()}__{name.upper()}"]
            assert re.sub(r"\$\{\w+:-(.+)\}", r"\1", told) == code(value)[0], option

    def test_variables_are_those_of_the_compose_file(self, pages: dict[str, Any], root: Path) -> None:
        used = re.findall(
            r"(?<!\$)\$\{(\w+)(?::-(.*?))?\}", (root / "docker-compose.yaml").read_text(encoding="utf-8")
        )
        table = pages["docs/how-to/deploy.md"].table("Docker Compose")
        assert {name for row in table for name in code(row[0])} == {name for name, _ in used}
        documented = {name: code(row[1])[0] for row in table for name in code(row[0]) if code(row[1])}
        assert documented == {name: default for name, default in used if default}

    def test_variables_are_all_named_at_the_head_of_the_compose_file(self, root: Path) -> None:
        text = (root / "docker-compose.yaml").read_text(encoding="utf-8")
        head, _, rest = text.partition("\nname:")
        named = [
            name
            for names in re.findall(r"^#   ((?:[A-Z_]+(?:, )?)+) ", head, re.MULTILINE)
            for name in names.split(", ")
        ]
        assert sorted(named) == sorted(set(re.findall(r"(?<!\$)\$\{(\w+)", rest)))


class TestOutput:
    def test_columns_are_those_of_the_code(self, pages: dict[str, Any]) -> None:
        table = [(row[0], row[1]) for row in pages["docs/output.md"].table("Columns")]
        assert table == [(f"`llm_{name}`", str(kind)) for name, kind in METADATA]

    def test_readme_names_every_column(self, pages: dict[str, Any]) -> None:
        (block,) = [
            block for block in pages["README.md"].blocks if "part-00000.parquet    your" in block.code
        ]
        assert re.findall(r"llm_\w+", block.code.partition("_rejects")[0]) == [
            f"llm_{name}" for name, _ in METADATA
        ]

    def test_statuses_are_those_of_the_code(self, pages: dict[str, Any]) -> None:
        table = {row[0].strip("`"): row for row in pages["docs/output.md"].table("Statuses")}
        assert set(table) == {status.value for status in RowStatus}
        for name, (_, _, paid, again) in table.items():
            if name == RowStatus.CONTENT_FILTER:
                continue
            assert paid == ("yes" if RowStatus(name) in PAID_STATUSES else "no")
            never = RowStatus(name) in PAID_STATUSES or name == RowStatus.EMPTY_INPUT
            assert again.partition(",")[0] == ("no" if never else "yes")

    def test_concepts_count_the_statuses(self, pages: dict[str, Any]) -> None:
        assert len(RowStatus) == 11
        assert "[eleven statuses]" in pages["docs/concepts.md"].text


class TestXcom:
    @pytest.mark.parametrize(
        ("path", "shape"),
        [("docs/operators/complete.md", ShardState), ("docs/operators/merge.md", RunSummary)],
    )
    def test_shapes_are_those_of_the_code(self, pages: dict[str, Any], path: str, shape: type[Any]) -> None:
        table = [row[0].strip("`") for row in pages[path].table("What it returns")]
        assert table == [field.name for field in dataclasses.fields(shape)]


class TestConnection:
    def test_fields_are_those_of_the_form(self, pages: dict[str, Any]) -> None:
        table = {row[0].strip("`"): row[1] for row in pages["docs/connection.md"].table("Fields")}
        extras = {name.removeprefix("extra."): label for name, label in table.items() if "." in name}
        assert set(extras) == LLM_EXTRAS
        assert extras == {name: field["label"] for name, field in CONN_FIELDS.items()}

    def test_options_are_those_of_the_provider(self, pages: dict[str, Any]) -> None:
        options = get_provider_info()["config"]["llm"]["options"]
        table = {
            row[0].strip("`"): row[1].strip("`")
            for row in pages["docs/configuration.md"].table("Configuration")
        }
        assert table == {name: option["default"] or "unset, as file://" for name, option in options.items()}


class TestNames:
    def test_that_are_stable_are_public(self, pages: dict[str, Any]) -> None:
        section = pages["docs/stability.md"].section("Stable")
        rows = [line for line in section.splitlines() if line.startswith("| `airflow_llm_provider")]
        table = {code(line)[0]: code(line)[1:] for line in rows}
        assert table["airflow_llm_provider"] == airflow_llm_provider.__all__
        assert set(table["airflow_llm_provider.errors"]) == {
            name for name in vars(errors) if name.startswith("LLM")
        }
        for module, names in table.items():
            assert all(hasattr(import_module(module), name) for name in names)

    def test_of_errors_in_concepts_are_all_that_a_user_meets(self, pages: dict[str, Any]) -> None:
        named = {name for row in pages["docs/concepts.md"].table("States") for name in code(row[0])}
        tree = {name: kind for name, kind in vars(errors).items() if name.startswith("LLM")}
        parents = {parent for kind in tree.values() for parent in kind.__mro__[1:]}
        leaves = {name for name, kind in tree.items() if kind not in parents}
        assert named == leaves | {"LLMInputError", "LLMRetryableError"}


class TestEvents:
    def test_are_all_with_their_fields(self, pages: dict[str, Any]) -> None:
        table = {code(row[0])[0]: code(row[2]) for row in pages["docs/how-to/events.md"].table("Events")}
        assert table == {
            kind.__name__: [field.name for field in dataclasses.fields(kind)]
            for kind in get_args(events.Event)
        }


class TestInstallation:
    def test_extras_are_those_of_the_project(self, pages: dict[str, Any], root: Path) -> None:
        project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        extras = [row[0].strip("`") for row in pages["README.md"].table("Install")]
        assert extras == list(project["optional-dependencies"])

    def test_versions_are_those_of_the_project(self, pages: dict[str, Any], root: Path) -> None:
        project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        supported = [c.rpartition(" ")[2] for c in project["classifiers"] if re.search(r":: 3\.\d+$", c)]
        assert f"| Python | {', '.join(supported)} |" in pages["README.md"].text
        assert f"| Python | {supported[0]} | {supported[-1]} |" in pages["docs/stability.md"].text
        (airflow,) = [name for name in project["dependencies"] if name.startswith("apache-airflow>")]
        assert f"| Apache Airflow | {airflow.partition('>=')[2]} and newer |" in pages["README.md"].text


class TestRules:
    def test_are_described_in_full(self, pages: dict[str, Any]) -> None:
        section = pages["docs/how-to/testing-your-dag.md"].section("Rules")
        named = {
            name for line in section.splitlines() if line.startswith("|") for name in code(line.split("|")[1])
        }
        assert named == {field.name for field in dataclasses.fields(Rule)} - {"content_type"}
        assert all(f"`{fault.value}`" in section for fault in Fault)


class TestPlugin:
    def test_fixtures_and_members_of_the_server_are_those_of_the_code(self, pages: dict[str, Any]) -> None:
        page = pages["docs/how-to/testing-your-dag.md"]
        assert all(hasattr(plugin, code(row[0])[0]) for row in page.table("The fixtures"))
        members = re.findall(r"^\| `(\w+)\b[^`]*` \|", page.section("The fixtures"), re.MULTILINE)
        assert {name for name in members if not name.startswith(("llm_", "run_"))} == {
            name for name in vars(ScriptedServer) if not name.startswith("_")
        }

    def test_arguments_of_a_run_are_those_of_the_code(self, pages: dict[str, Any]) -> None:
        table = [
            row[0].strip("`") for row in pages["docs/how-to/testing-your-dag.md"].table("Run the whole DAG")
        ]
        parameters = inspect.signature(DagRunner.__call__).parameters.values()
        assert table == [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]

    def test_members_of_a_run_are_those_of_the_code(self, pages: dict[str, Any]) -> None:
        section = pages["docs/how-to/testing-your-dag.md"].section("Run the whole DAG")
        _, _, returned = section.partition("It returns")
        named = {
            name.partition("(")[0]
            for line in re.findall(r"^\| (`.+?) \|", returned, re.MULTILINE)
            for name in code(line)
        }
        public = {name for name in vars(DagTestRun) if not name.startswith("_")}
        assert named == public | {field.name for field in dataclasses.fields(DagTestRun)} - {"dag_id"}
