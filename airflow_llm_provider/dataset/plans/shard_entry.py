"""One shard as the plan lists it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from airflow_llm_provider.xcom import ShardReference

if TYPE_CHECKING:
    from collections.abc import Mapping

_THOUSAND = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardEntry:
    """One shard of a plan.

    :param shard_id: hash of the spec, the schema and the rows, in order.
    :param index: position in the plan, from 0.
    :param tokens: prompt tokens of the rows that will be sent.
    :param first_row: number of its first row in the input, from 0.
    :param donors: older shards of the same destination that hold answers to some of its requests.
    :param file: name of the counted group of input files in which its rows lie; ``None``: in a file of their own.
    :param sorted: whether its rows were sorted together with neighbours; ``first_row`` is then the first row of all of
        these, the same for every shard that was cut from them.
    :param row_groups: first of the row groups there that are its rows, and how many.
    """

    shard_id: str
    index: int
    rows: int
    tokens: int
    first_row: int
    donors: tuple[str, ...] = ()
    file: str | None = None
    sorted: bool = False
    row_groups: tuple[int, int] | None = None

    @property
    def label(self) -> str:
        """What a person sees in Airflow's grid."""
        if self.sorted:
            # Its rows are no neighbours.
            rows = "1 row" if self.rows == 1 else f"{self.rows} rows"
            return f"shard {self.index:04d} · {rows} · {_short(self.tokens)} tok"
        last = self.first_row + self.rows - 1
        rows = f"row {last}" if self.rows == 1 else f"rows {self.first_row}-{last}"
        return f"shard {self.index:04d} · {rows} · {_short(self.tokens)} tok"

    def reference(self, plan: str) -> ShardReference:
        """Return what crosses XCom."""
        return ShardReference(
            plan=plan,
            shard_id=self.shard_id,
            index=self.index,
            rows=self.rows,
            tokens=self.tokens,
            label=self.label,
        )

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Rebuild it from the plan file."""
        groups = value.get("row_groups")
        return cls(
            **{
                **value,
                "donors": tuple(value["donors"]),
                "row_groups": None if groups is None else (groups[0], groups[1]),
            }
        )


def _short(tokens: int) -> str:
    """Write a count in at most four characters, rounded down."""
    for divisor, unit in ((_THOUSAND**3, "G"), (_THOUSAND**2, "M"), (_THOUSAND, "k")):
        if tokens >= divisor:
            whole = tokens // divisor
            return f"{whole}{unit}" if whole >= 10 else f"{tokens * 10 // divisor / 10:g}{unit}"  # noqa: PLR2004
    return str(tokens)
