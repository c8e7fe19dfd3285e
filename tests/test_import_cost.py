from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

HEAVY = ("pandas", "pyarrow", "openai", "tiktoken")

BUILD_A_DAG = """
from datetime import datetime
from airflow.sdk import DAG
from airflow_llm_provider import CompletionSpec, llm_map

with DAG("nightly", schedule="@daily", start_date=datetime(2025, 1, 1), catchup=False) as dag:
    llm_map(
        group_id="label",
        spec=CompletionSpec(
            model="gpt-4o-mini",
            prompt="{{ text }}",
            output_schema={"type": "object", "properties": {"label": {"type": "string"}}},
        ),
        source="s3://lake/in/ds={{ ds }}/*.parquet",
        destination="s3://lake/out/ds={{ ds }}",
        columns=["id"],
        where="lang = 'de' AND score >= 3",
    )
assert len(dag.tasks) == 3
"""


def loaded_after(code: str, names: tuple[str, ...]) -> list[str]:
    """Run ``code`` in a new interpreter and return which of ``names`` it has loaded."""
    ending = f"import sys\nprint([name for name in {names!r} if name in sys.modules])\n"
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code) + "\n" + ending],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return [name for name in names if f"'{name}'" in done.stdout.splitlines()[-1]]


class TestDagFile:
    def test_importing_the_package_loads_nothing_heavy_and_no_airflow(self) -> None:
        assert loaded_after("import airflow_llm_provider", (*HEAVY, "airflow", "jinja2", "fsspec")) == []

    def test_building_a_dag_loads_nothing_heavy(self) -> None:
        assert loaded_after(BUILD_A_DAG, HEAVY) == []

    def test_provider_metadata_loads_nothing_heavy_and_no_airflow(self) -> None:
        code = "from airflow_llm_provider.get_provider_info import get_provider_info\nget_provider_info()\n"
        assert loaded_after(code, (*HEAVY, "airflow")) == []


class TestTask:
    def test_asking_does_not_load_the_sdk_which_takes_as_long_as_everything_else(self) -> None:
        code = (
            "import airflow_llm_provider.jobs, airflow_llm_provider.clients.openai as o\no.OpenAIClient()\n"
        )
        assert loaded_after(code, ("openai",)) == []


class TestLowerLayers:
    @pytest.mark.parametrize(
        "layer", ["engine", "clients", "dataset", "jobs", "spec", "xcom", "errors", "prompt"]
    )
    def test_A25_import_no_airflow(self, layer: str) -> None:
        code = f"""
        import importlib, pkgutil
        layer = importlib.import_module("airflow_llm_provider.{layer}")
        for module in pkgutil.walk_packages(getattr(layer, "__path__", ()), layer.__name__ + "."):
            importlib.import_module(module.name)
        """
        assert loaded_after(code, ("airflow",)) == []


class TestExports:
    def test_every_exported_name_is_there_and_they_are_sorted(self) -> None:
        import airflow_llm_provider

        assert airflow_llm_provider.__all__ == sorted(airflow_llm_provider.__all__)
        for name in airflow_llm_provider.__all__:
            assert getattr(airflow_llm_provider, name) is not None
        assert dir(airflow_llm_provider) == airflow_llm_provider.__all__

    def test_an_unknown_name_is_an_attribute_error(self) -> None:
        import airflow_llm_provider

        with pytest.raises(AttributeError, match="no attribute 'LLMap'"):
            _ = airflow_llm_provider.LLMap
