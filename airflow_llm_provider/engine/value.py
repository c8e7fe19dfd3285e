"""Values that are made for every row, a dozen each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
def value(cls: type[T]) -> type[T]:
    """Make a class a dataclass with slots and keyword arguments that nobody assigns to.

    The type checker sees to that. A frozen dataclass would see to it again whenever one is made, and take three times as
    long: all those of a row together as long as a tenth of everything the engine does for it.
    """
    return dataclass(kw_only=True, slots=True, unsafe_hash=True)(cls)
