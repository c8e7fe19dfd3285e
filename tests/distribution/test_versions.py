"""The oldest versions that the project allows are those that `make test-oldest` installs, the newest are pinned."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.distribution.conftest import ROOT

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
#: What the oldest environment has: the package, and the extras that its tests use.
EXTRAS = re.findall(r"--extra (\w+)", MAKEFILE.partition("constraints-oldest: install")[2])
#: Of these the S3 client of the tests wants newer ones than the package does.
NEWER_FOR_TESTS = {"aiohttp", "fsspec"}


def pins(file: str) -> dict[str, Version]:
    """Return the versions of a constraints file by name."""
    lines = [Requirement(line) for line in (ROOT / file).read_text(encoding="utf-8").splitlines() if line]
    return {canonicalize_name(line.name): Version(str(line.specifier).removeprefix("==")) for line in lines}


def allowed(extras: list[str]) -> list[Requirement]:
    """Return what the project requires, with some extras."""
    project = PROJECT["project"]
    found = [
        *project["dependencies"],
        *(each for name in extras for each in project["optional-dependencies"][name]),
    ]
    return [Requirement(each) for each in found]


def oldest(requirement: Requirement) -> Version:
    """Return the lower bound."""
    (bound,) = [part.version for part in requirement.specifier if part.operator == ">="]
    return Version(bound)


class TestOldest:
    def test_the_environment_has_extras(self) -> None:
        assert {"offline", "fast", "redis"} <= set(EXTRAS)

    @pytest.mark.parametrize("requirement", allowed(EXTRAS), ids=str)
    def test_is_what_is_tested(self, requirement: Requirement) -> None:
        pinned = pins("constraints-oldest.txt")[canonicalize_name(requirement.name)]
        if requirement.name == "apache-airflow":
            # Of the oldest minor version the last patch, which is what people have.
            assert pinned.release[:2] == oldest(requirement).release[:2]
            assert f"OLDEST_AIRFLOW := {pinned}\n" in MAKEFILE
        elif requirement.name in NEWER_FOR_TESTS:
            assert pinned > oldest(requirement)
        else:
            assert pinned == oldest(requirement)


class TestNewest:
    @pytest.mark.parametrize(
        "requirement", allowed(sorted(PROJECT["project"]["optional-dependencies"])), ids=str
    )
    def test_is_pinned_and_allowed(self, requirement: Requirement) -> None:
        pinned = pins("constraints.txt")[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(pinned)
        assert pinned >= oldest(requirement)
