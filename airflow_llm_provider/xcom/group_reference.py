"""Which input files a task is to count."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Self

from airflow_llm_provider.xcom.json_form import SCHEMA_VERSION, fields_of


@dataclass(frozen=True, kw_only=True)
class GroupReference:
    """A group of neighbouring input files, for one task to count.

    :param listing: id of the list of all input files.
    :param index: position of the group, from 0.
    :param first: number of its first file in the list, from 0.
    :param files: number of files.
    :param size: bytes of the files.
    """

    listing: str
    index: int
    first: int
    files: int
    size: int
    schema_version: int = SCHEMA_VERSION

    @property
    def label(self) -> str:
        """What a person sees in Airflow's grid."""
        last = self.first + self.files - 1
        files = f"file {last}" if self.files == 1 else f"files {self.first}-{last}"
        return f"{files} · {self.size / 1e6:,.1f} MB"

    def to_json(self) -> dict[str, Any]:
        """Return the reference as plain JSON values."""
        return {**dataclasses.asdict(self), "label": self.label}

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Rebuild a reference from XCom.

        :raises LLMInputError: when it is not one, or of a newer version.
        """
        return cls(**fields_of(cls, value, "a group of files from the task that lists them"))
