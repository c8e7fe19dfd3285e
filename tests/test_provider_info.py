from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import jsonschema_rs
from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime

import airflow_llm_provider
from airflow_llm_provider.get_provider_info import get_provider_info
from airflow_llm_provider.hooks.endpoint import LLM_EXTRAS
from airflow_llm_provider.hooks.llm import LLMHook

if TYPE_CHECKING:
    import pytest


def airflow(*command: str) -> Any:
    """Run Airflow's own command line, as a user does, and return its JSON."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [str(Path(sys.executable).with_name("airflow")), *command, "--output", "json"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env=environment,
    )
    return json.loads(done.stdout[done.stdout.index("[") :])


class TestCommandLine:
    def test_providers_list_shows_the_provider(self) -> None:
        rows = {row["package_name"]: row for row in airflow("providers", "list")}
        assert rows["airflow-llm-provider"]["version"] == airflow_llm_provider.__version__

    def test_providers_hooks_shows_the_connection_type(self) -> None:
        rows = {row["connection_type"]: row for row in airflow("providers", "hooks")}
        assert rows["llm"]["class"] == "airflow_llm_provider.hooks.llm.LLMHook"
        assert rows["llm"]["conn_id_attribute_name"] == "conn_id"
        assert rows["llm"]["hook_name"] == LLMHook.hook_name


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

    def test_every_module_named_exists(self) -> None:
        info = get_provider_info()
        for module in [
            m for kind in ("hooks", "operators") for entry in info[kind] for m in entry["python-modules"]
        ]:
            import_module(module)

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
