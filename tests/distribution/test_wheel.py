"""The wheel holds the package, all of it and nothing else, and works where nothing else of ours is installed."""

from __future__ import annotations

import json
import tarfile
import tomllib
from email.parser import BytesParser
from typing import TYPE_CHECKING

import airflow_llm_provider
from tests.distribution.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_llm_provider.testing.scripted_server import ScriptedServer
    from tests.distribution.conftest import Environment

#: What a user of the wheel does first: ask Airflow for the hook, build a DAG, run a dataset.
USE = """
import json
import sys
from pathlib import Path

from airflow.providers_manager import ProvidersManager
from airflow.sdk import DAG

import airflow_llm_provider
from airflow_llm_provider import CompletionSpec, llm_map, run_dataset
from airflow_llm_provider.dataset import read_results
from airflow_llm_provider.limiters import redis

spec = CompletionSpec(model="scripted", prompt="Sort: {{ text }}", max_output_tokens=8)
with DAG("nightly") as dag:
    llm_map(group_id="label", spec=spec, source="in.csv", destination="out")

Path("in.csv").write_text("id,text\\n1,red\\n2,green\\n")
summary = run_dataset(spec, "in.csv", "out", base_url=sys.argv[1])
manager = ProvidersManager()
info = manager.providers["airflow-llm-provider"].data
found = {
    "package": str(Path(airflow_llm_provider.__file__).parent),
    "hook": manager.hooks["llm"].hook_class_name,
    "info": info,
    "links": sorted(manager.extra_links_class_names),
    "decorators": sorted(manager.taskflow_decorators),
    "tasks": sorted(dag.task_ids),
    "succeeded": summary.succeeded,
    "answers": read_results("out").column("answer").to_pylist(),
}
print(json.dumps(found))
"""


class TestWheel:
    def test_holds_every_file_of_the_package_and_no_other(self, wheel_files: dict[str, bytes]) -> None:
        package = ROOT / "airflow_llm_provider"
        files = [path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        expected = {path.relative_to(ROOT).as_posix(): path.read_bytes() for path in files}
        assert {f"airflow_llm_provider/{name}" for name in ("py.typed", "limiters/bucket.lua")} <= set(
            expected
        )
        held = {name: content for name, content in wheel_files.items() if ".dist-info/" not in name}
        assert held == expected

    def test_says_what_the_project_says(self, wheel_files: dict[str, bytes]) -> None:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        version = airflow_llm_provider.__version__
        told = BytesParser().parsebytes(wheel_files[f"airflow_llm_provider-{version}.dist-info/METADATA"])
        assert (told["Name"], told["Version"]) == (project["name"], version)
        assert told["Requires-Python"] == project["requires-python"]
        required = [each for each in told.get_all("Requires-Dist", []) if "extra ==" not in each]
        assert sorted(required) == sorted(project["dependencies"])
        assert set(told.get_all("Provides-Extra", [])) == set(project["optional-dependencies"])
        assert f"airflow_llm_provider-{version}.dist-info/licenses/LICENSE" in wheel_files


class TestSourceDistribution:
    def test_holds_what_the_wheel_is_built_from(self, sdist: Path) -> None:
        with tarfile.open(sdist) as archive:
            top = {name.split("/")[1] for name in archive.getnames()}
        wanted = {"CHANGELOG.md", "LICENSE", "README.md", "airflow_llm_provider", "pyproject.toml"}
        # The build adds metadata, and what tells it which files to leave out.
        assert top == wanted | {"PKG-INFO", ".gitignore"}


class TestCleanEnvironment:
    def test_airflow_lists_the_provider(self, clean: Environment) -> None:
        said = clean.run("-m", "airflow", "providers", "list", "--output", "json")
        versions = {row["package_name"]: row["version"] for row in json.loads(said[said.index("[") :])}
        assert versions["airflow-llm-provider"] == airflow_llm_provider.__version__

    def test_the_package_is_used_from_the_wheel(
        self, clean: Environment, scripted_server: ScriptedServer
    ) -> None:
        found = json.loads(clean.run("-c", USE, scripted_server.base_url).splitlines()[-1])
        info = found["info"]
        assert str(clean.folder) in found["package"]
        assert found["hook"] == "airflow_llm_provider.hooks.llm.LLMHook"
        assert set(info.get("extra-links", [])) <= set(found["links"])
        assert {each["name"] for each in info.get("task-decorators", [])} <= set(found["decorators"])
        assert found["tasks"] == ["label.complete", "label.merge", "label.split"]
        assert found["succeeded"] == scripted_server.stats()["answered"] == 2
        assert found["answers"] == ["echo: Sort: red", "echo: Sort: green"]
