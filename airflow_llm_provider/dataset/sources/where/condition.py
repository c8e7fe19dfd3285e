"""What a condition says, once it is read. No Arrow: a DAG file reads conditions too."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

#: What stands in a condition for a value.
Literal: TypeAlias = str | Decimal | bool


@dataclass(frozen=True, slots=True)
class Column:
    """A column.

    :param path: its name, and the names inside it when it is nested.
    :param place: its first character in the condition, from 1.
    """

    path: tuple[str, ...]
    place: int

    def __str__(self) -> str:
        return ".".join(self.path)


@dataclass(frozen=True, slots=True)
class Compare:
    """``column < value``, or another column in the place of the value.

    :param sign: ``=``, ``<>``, ``<``, ``<=``, ``>`` or ``>=``.
    """

    column: Column
    sign: str
    value: Literal | Column


@dataclass(frozen=True, slots=True)
class Among:
    """``column IN (value, …)``."""

    column: Column
    values: tuple[Literal, ...]


@dataclass(frozen=True, slots=True)
class Missing:
    """``column IS NULL``."""

    column: Column


@dataclass(frozen=True, slots=True)
class Like:
    """``column LIKE 'pattern'``.

    :param escape: character before a ``%`` or ``_`` that means itself; empty: none.
    """

    column: Column
    pattern: str
    escape: str


@dataclass(frozen=True, slots=True)
class Holds:
    """A boolean column alone."""

    column: Column


@dataclass(frozen=True, slots=True)
class Not:
    """``NOT part``."""

    part: Condition


@dataclass(frozen=True, slots=True)
class Both:
    """``part AND part AND …``."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Either:
    """``part OR part OR …``."""

    parts: tuple[Condition, ...]


Condition: TypeAlias = Compare | Among | Missing | Like | Holds | Not | Both | Either


def columns_of(condition: Condition) -> Iterator[Column]:
    """Yield the columns of a condition, in the order of the text."""
    if isinstance(condition, (Both, Either)):
        for part in condition.parts:
            yield from columns_of(part)
    elif isinstance(condition, Not):
        yield from columns_of(condition.part)
    else:
        yield condition.column
        if isinstance(condition, Compare) and isinstance(condition.value, Column):
            yield condition.value
