from __future__ import annotations

import json
import os
import pkgutil
import subprocess
import sys
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import pytest
from airflow.sdk import BaseHook, BaseOperator, BaseOperatorLink
from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime

import airflow_llm_provider
from airflow_llm_provider.get_provider_info import get_provider_info
from airflow_llm_provider.hooks.endpoint import LLM_EXTRAS
from airflow_llm_provider.hooks.llm import LLMHook

if TYPE_CHECKING:
    from collections.abc import Iterator


def airflow(*command: str) -> str:
    """Run Airflow's own command line, as a user does, and return what it prints."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [str(Path(sys.executable).with_name("airflow")), *command],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env=environment,
    )
    return done.stdout


def listed(*command: str) -> Any:
    """Return what a command of Airflow lists."""
    printed = airflow(*command, "--output", "json")
    return json.loads(printed[printed.index("[") :])


def classes() -> Iterator[type[Any]]:
    """Every class of the package's Airflow layer."""
    for part in pkgutil.iter_modules(airflow_llm_provider.__path__, "airflow_llm_provider."):
        # Doubles for tests, and a set-up of the repository: no part of what the provider offers to Airflow.
        if not part.ispkg or part.name.endswith((".testing", ".local")):
            continue
        for found in pkgutil.walk_packages(import_module(part.name).__path__, part.name + "."):
            if not found.name.endswith("__main__"):
                kinds = [kind for kind in vars(import_module(found.name)).values() if isinstance(kind, type)]
                yield from (kind for kind in kinds if kind.__module__ == found.name)


def modules_with(base: type[Any]) -> set[str]:
    """Modules of the package that have such a class for users."""
    return {
        kind.__module__ for kind in classes() if issubclass(kind, base) and not kind.__name__.startswith("_")
    }


class TestCommandLine:
    def test_providers_list_shows_the_provider(self) -> None:
        rows = {row["package_name"]: row for row in listed("providers", "list")}
        assert rows["airflow-llm-provider"]["version"] == airflow_llm_provider.__version__

    def test_providers_hooks_shows_the_connection_type(self) -> None:
        rows = {row["connection_type"]: row for row in listed("providers", "hooks")}
        assert rows["llm"]["class"] == "airflow_llm_provider.hooks.llm.LLMHook"
        assert rows["llm"]["conn_id_attribute_name"] == "conn_id"
        assert rows["llm"]["hook_name"] == LLMHook.hook_name

    def test_config_list_describes_every_option(self) -> None:
        printed = airflow("config", "list", "--section", "llm", "--defaults")
        (section,) = [info for name, info in get_provider_info()["config"].items() if name == "llm"]
        assert f"[llm]\n# {section['description']}" in printed
        for name, option in section["options"].items():
            assert f"# Example: {name} = {option['example']}" in printed
            assert f"# Variable: AIRFLOW__LLM__{name.upper()}" in printed
            assert option["description"].split(".")[0] in " ".join(printed.split())


class TestMetadata:
    def test_follows_airflows_schema(self) -> None:
        schema = json.loads(files("airflow").joinpath("provider_info.schema.json").read_text())
        jsonschema_rs.validator_for(schema).validate(get_provider_info())

    def test_is_plain_json(self) -> None:
        assert json.loads(json.dumps(get_provider_info())) == get_provider_info()

    def test_versions_and_names_agree_with_the_package(self) -> None:
        info = get_provider_info()
        assert info["versions"][0] == airflow_llm_provider.__version__
        (connection_type,) = info["connection-types"]
        assert connection_type["connection-type"] == LLMHook.conn_type
        assert connection_type["hook-name"] == LLMHook.hook_name
        assert connection_type["hook-class-name"] == f"{LLMHook.__module__}.{LLMHook.__name__}"

    @pytest.mark.parametrize(("kind", "base"), [("hooks", BaseHook), ("operators", BaseOperator)])
    def test_names_every_module_with_a_hook_or_operator(self, kind: str, base: type[Any]) -> None:
        (entry,) = get_provider_info()[kind]
        assert set(entry["python-modules"]) == modules_with(base)

    def test_names_every_extra_link(self) -> None:
        links = {
            f"{each.__module__}.{each.__name__}" for each in classes() if issubclass(each, BaseOperatorLink)
        }
        assert set(get_provider_info().get("extra-links", [])) == links

    def test_names_every_decorator(self) -> None:
        for entry in get_provider_info().get("task-decorators", []):
            module, _, name = entry["class-name"].rpartition(".")
            assert callable(getattr(import_module(module), name))
        named = {
            entry["class-name"].rpartition(".")[0] for entry in get_provider_info().get("task-decorators", [])
        }
        folder = Path(airflow_llm_provider.__file__).with_name("decorators")
        assert named == {f"airflow_llm_provider.decorators.{file.stem}" for file in folder.glob("[!_]*.py")}

    @pytest.mark.parametrize("name", sorted(get_provider_info()["config"]["llm"]["options"]))
    def test_describes_every_option_in_full(self, name: str) -> None:
        option = get_provider_info()["config"]["llm"]["options"][name]
        wanted = {"description", "version_added", "type", "example"}
        assert wanted <= set(option)
        assert all(isinstance(option[key], str) and option[key] for key in wanted)
        # Airflow masks the value of a sensitive option wherever it meets it: a default would go from every path.
        assert (option["default"] is None) == option.get("sensitive", False)

    def test_airflow_finds_the_hook_by_connection_type(self) -> None:
        found = ProvidersManagerTaskRuntime().hooks["llm"]
        assert found is not None
        assert (found.hook_class_name, found.connection_id_attribute_name) == (
            "airflow_llm_provider.hooks.llm.LLMHook",
            "conn_id",
        )


class TestConnectionForm:
    def test_the_api_server_shows_our_fields(self) -> None:
        from airflow.api_fastapi.core_api.services.ui.connections import HookMetaService

        forms = {form.connection_type: form for form in HookMetaService.hook_meta_data()}
        form = forms["llm"]
        assert form.standard_fields is not None
        assert form.standard_fields.host is not None
        assert form.standard_fields.host.title == "Base URL"
        assert form.standard_fields.password is not None
        assert form.standard_fields.password.title == "API key"
        assert form.standard_fields.login is not None
        assert form.standard_fields.login.hidden
        assert set(form.extra_fields or {}) == LLM_EXTRAS

    def test_the_hook_describes_the_same_form_to_airflow_3_1(self, monkeypatch: pytest.MonkeyPatch) -> None:
        behaviour = LLMHook.get_ui_field_behaviour()
        assert set(behaviour) == {"hidden_fields", "relabeling", "placeholders"}
        # Airflow 3.1's API server brings stand-ins of its own where these are not installed.
        for module, name in (
            ("flask_appbuilder.fieldwidgets", "BS3TextFieldWidget"),
            ("flask_babel", "lazy_gettext"),
            ("wtforms", "StringField"),
        ):
            monkeypatch.setitem(
                sys.modules, module, SimpleNamespace(**{name: lambda *values, **more: (values, more)})
            )
        monkeypatch.setitem(sys.modules, "flask_appbuilder", SimpleNamespace())
        assert set(LLMHook.get_connection_form_widgets()) == LLM_EXTRAS
