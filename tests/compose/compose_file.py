"""`docker-compose.yaml` as Docker reads it: anchors and merge keys resolved, variables put in."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["COMPOSE_FILE", "ComposeFile", "Service", "interpolate"]

COMPOSE_FILE = Path(__file__).parents[2] / "docker-compose.yaml"
_VARIABLE = re.compile(
    r"\$(?:(?P<escaped>\$)|(?P<plain>\w+)|\{(?P<name>\w+)(?:(?P<operator>:?[-?+])(?P<word>[^}]*))?\})"
)


def interpolate(text: str, environment: Mapping[str, str]) -> str:
    """Put variables into a text by the rules of the Compose Specification."""

    def value(match: re.Match[str]) -> str:
        if match["escaped"]:
            return "$"
        name, operator, word = match["plain"] or match["name"], match["operator"] or "", match["word"]
        given = environment.get(name)
        there = given is not None and (given != "" or not operator.startswith(":"))
        if operator.endswith("+"):
            return word if there else ""
        if there or not operator:
            return given or ""
        if operator.endswith("?"):
            raise KeyError(f"{name}: {word}")
        return word

    return _VARIABLE.sub(value, text)


@dataclass(frozen=True, kw_only=True)
class Service:
    """One service.

    :param command: words of its command; empty: the image's own.
    :param volumes: source and target of each mount; a source with a slash is a folder, another a named volume.
    :param depends_on: condition by service.
    :param health: words of its health check.
    """

    name: str
    command: list[str]
    environment: dict[str, str]
    volumes: list[tuple[str, str]]
    ports: list[str]
    depends_on: dict[str, str]
    health: list[str]
    replicas: int
    raw: dict[str, Any] = field(repr=False)

    @property
    def once(self) -> bool:
        """Whether it runs once, before others."""
        return self.raw.get("restart") == "no"


@dataclass(frozen=True)
class ComposeFile:
    """The whole file.

    :param content: as YAML, with variables put in.
    """

    content: dict[str, Any]

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> ComposeFile:
        """Read the file with an environment."""

        def resolved(value: Any) -> Any:
            if isinstance(value, dict):
                return {key: resolved(item) for key, item in value.items()}
            if isinstance(value, list):
                return [resolved(item) for item in value]
            return interpolate(value, environment) if isinstance(value, str) else value

        # Variables are put into values, not into the text, so that a value cannot become YAML.
        return cls(resolved(yaml.safe_load(COMPOSE_FILE.read_text(encoding="utf-8"))))

    @property
    def services(self) -> dict[str, Service]:
        """Every service by its name."""
        return {name: _service(name, raw) for name, raw in self.content["services"].items()}


def _service(name: str, raw: dict[str, Any]) -> Service:
    return Service(
        name=name,
        command=_words(raw.get("command", [])),
        environment={key: str(value) for key, value in raw.get("environment", {}).items()},
        volumes=[tuple(volume.split(":")[:2]) for volume in raw.get("volumes", [])],
        ports=list(raw.get("ports", [])),
        depends_on={key: value["condition"] for key, value in raw.get("depends_on", {}).items()},
        health=raw.get("healthcheck", {}).get("test", []),
        replicas=raw.get("deploy", {}).get("replicas", 1),
        raw=raw,
    )


def _words(command: str | list[str]) -> list[str]:
    return shlex.split(command) if isinstance(command, str) else list(command)
