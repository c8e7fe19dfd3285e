"""What users install: the source distribution, the wheel built from it, and an environment with that wheel alone."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
_OURS = (
    "airflow_llm_provider",
    "_airflow_llm_provider",
    "_editable_impl_airflow_llm_provider",
    "__editable__",
)


def run(*command: str | Path, folder: Path, environment: dict[str, str] | None = None) -> str:
    """Run a command and return what it prints; what it complains of is shown when it fails."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout


@dataclass(frozen=True)
class Environment:
    """A virtual environment.

    :param folder: where it lies; programs run there, far from the repository.
    """

    folder: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    def run(self, *arguments: str | Path) -> str:
        """Run its Python as a user does, who has no clone of the repository."""
        left_out = {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE"}
        environment = {name: value for name, value in os.environ.items() if name not in left_out}
        home = str(self.folder / "airflow")
        return run(
            self.python, *arguments, folder=self.folder, environment={**environment, "AIRFLOW_HOME": home}
        )


def _build(target: str, *, source: Path, folder: Path) -> Path:
    # Without isolation, which would fetch the build backend from a registry.
    run(sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", folder, folder=source)
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="session")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution of this repository."""
    return _build("sdist", source=ROOT, folder=tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="session")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the source distribution as a packager does."""
    unpacked = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(unpacked, filter="data")
    (source,) = unpacked.iterdir()
    return _build("wheel", source=source, folder=tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def wheel_files(wheel: Path) -> Iterator[dict[str, bytes]]:
    """Content of the wheel by path."""
    with zipfile.ZipFile(wheel) as archive:
        yield {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="session")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with the wheel, and with the dependencies that are installed here: all but this repository."""
    environment = Environment(tmp_path_factory.mktemp("clean"))
    venv.create(environment.folder, symlinks=True)
    site = Path(environment.run("-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    for installed in Path(sysconfig.get_path("purelib")).iterdir():
        if not installed.name.startswith(_OURS) and installed.name != "__pycache__":
            (site / installed.name).symlink_to(installed)
    environment.run("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel)
    return environment
