"""From what a condition says to an Arrow expression over columns of known types.

A value is compared as what its column is, and exactly: no integer becomes a float, no decimal loses a digit. Null behaves
as in SQL: a comparison with it is neither true nor false, and a row is taken only when the condition is true.
"""

from __future__ import annotations

import difflib
import functools
import operator
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from airflow_llm_provider.dataset.sources.where.axis import Axis, axis_of
from airflow_llm_provider.dataset.sources.where.condition import (
    Among,
    Both,
    Column,
    Compare,
    Condition,
    Either,
    Holds,
    Like,
    Literal,
    Missing,
    Not,
)
from airflow_llm_provider.dataset.sources.where.types import is_text, shown, value_type
from airflow_llm_provider.errors import LLMInputError

if TYPE_CHECKING:
    from fractions import Fraction

_Operator: TypeAlias = Callable[[Any, Any], Any]
_OPERATORS: dict[str, _Operator] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_UNKNOWN = pa.scalar(None, pa.bool_())
_MOST_NAMED = 50
#: Signs of a regular expression.
_SPECIAL = frozenset(r"\.^$|?*+()[]{}")


def expression_of(condition: Condition, schema: pa.Schema) -> pc.Expression:
    """Return the expression that is true where the condition holds.

    :raises LLMInputError: naming the place and the column, when it is not there or cannot be compared so.
    """
    return _Translation(schema).of(condition)


class _Translation:
    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def of(self, condition: Condition) -> pc.Expression:
        if isinstance(condition, Both):
            return _joined(operator.and_, [self.of(part) for part in condition.parts])
        if isinstance(condition, Either):
            return _joined(operator.or_, [self.of(part) for part in condition.parts])
        if isinstance(condition, Not):
            return ~self.of(condition.part)
        return self._test(condition)

    def _test(self, condition: Compare | Among | Missing | Like | Holds) -> pc.Expression:
        field = self._field(condition.column)
        if isinstance(condition, Missing):
            return field.values.is_null()
        if isinstance(condition, Compare):
            return self._compare(field, condition)
        if isinstance(condition, Among):
            return field.among(condition.values)
        if isinstance(condition, Like):
            return field.like(condition)
        return field.holds()

    def _field(self, column: Column) -> _Field:
        fields = {field.name: field for field in self._schema}
        kind: pa.DataType | None = None
        for depth, name in enumerate(column.path):
            field = fields.get(name)
            if field is None:
                self._no_column(column, depth, list(fields))
            kind = field.type
            fields = {child.name: child for child in kind} if pa.types.is_struct(kind) else {}
        return _Field(column, kind)

    def _no_column(self, column: Column, depth: int, names: Sequence[str]) -> NoReturn:
        name = column.path[depth]
        inside = f" in column {'.'.join(column.path[:depth])!r}" if depth else ""
        close = next((known for known in names if known.casefold() == name.casefold()), None)
        close = close or next(iter(difflib.get_close_matches(name, names, n=1)), None)
        there = ", ".join(map(repr, names[:_MOST_NAMED])) or "nothing"
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        hint = f"; did you mean {close!r}?" if close else "."
        raise LLMInputError(
            f"where, character {column.place}: there is no column {name!r}{inside}{hint} There is {there}{more}"
        )

    def _compare(self, field: _Field, condition: Compare) -> pc.Expression:
        if isinstance(condition.value, Column):
            return field.compare_column(condition.sign, self._field(condition.value))
        return field.compare(condition.sign, condition.value)


class _Field:
    """A column in an expression."""

    def __init__(self, column: Column, kind: pa.DataType) -> None:
        self._column = column
        self._kind = value_type(kind)
        self._axis: Axis | None = axis_of(self._kind)
        values = pc.field(*column.path) if len(column.path) > 1 else pc.field(column.path[0])
        self.values: pc.Expression = values if self._kind == kind else values.cast(self._kind)

    def _fail(self, problem: str) -> NoReturn:
        raise LLMInputError(f"where, character {self._column.place}, column {str(self._column)!r}: {problem}")

    def _always(self, *, holds: bool) -> pc.Expression:
        """Return what is so for every value, and unknown for null."""
        return pc.if_else(self.values.is_valid(), pa.scalar(holds), _UNKNOWN)

    def compare(self, sign: str, value: Literal) -> pc.Expression:
        """Compare every value with a literal."""
        if self._axis is not None:
            return self._compare_exact(sign, self._axis, value)
        if pa.types.is_boolean(self._kind) and sign not in {"=", "<>"}:
            self._fail("booleans are compared with = and <> only")
        return _OPERATORS[sign](self._comparable(), self._scalar(value))

    def _comparable(self) -> pc.Expression:
        return self.values.cast(pa.float64()) if pa.types.is_floating(self._kind) else self.values

    def _scalar(self, value: Literal) -> pa.Scalar:
        if is_text(self._kind):
            if not isinstance(value, str):
                self._fail("it holds text: quote the value, as in '5'")
            return pa.scalar(value, self._kind)
        if pa.types.is_floating(self._kind):
            if not isinstance(value, Decimal):
                self._fail(f"it holds {shown(self._kind)}: compare it with a number, without quotes")
            number = float(value)
            if number in (float("inf"), float("-inf")):
                self._fail("this number is beyond the range of floats")
            return pa.scalar(number)
        if pa.types.is_boolean(self._kind):
            if not isinstance(value, bool):
                self._fail("it holds booleans: compare it with TRUE or FALSE")
            return pa.scalar(value)
        return self._fail(f"it holds {shown(self._kind)}, for which there is only IS NULL and IS NOT NULL")

    def _compare_exact(self, sign: str, axis: Axis, value: Literal) -> pc.Expression:
        position = self._position(axis, value)
        whole = position.numerator // position.denominator
        is_whole = position.denominator == 1
        if sign in {"=", "<>"}:
            if is_whole and axis.low <= whole <= axis.high:
                return _OPERATORS[sign](self.values, axis.scalar(whole))
            return self._always(holds=sign == "<>")
        if sign in {"<", "<="}:
            last = whole - 1 if sign == "<" and is_whole else whole
            if last < axis.low or last >= axis.high:
                return self._always(holds=last >= axis.high)
            return self.values <= axis.scalar(last)
        first = whole if sign == ">=" and is_whole else whole + 1
        if first > axis.high or first <= axis.low:
            return self._always(holds=first <= axis.low)
        return self.values >= axis.scalar(first)

    def _position(self, axis: Axis, value: Literal) -> Fraction:
        try:
            return axis.position(value)
        except LLMInputError as error:
            self._fail(str(error))

    def among(self, values: Sequence[Literal]) -> pc.Expression:
        """Tell which values are in a list."""
        if self._axis is not None:
            positions = [self._position(self._axis, value) for value in values]
            scalars = [
                self._axis.scalar(position.numerator)
                for position in positions
                if position.denominator == 1 and self._axis.low <= position.numerator <= self._axis.high
            ]
        else:
            scalars = [self._scalar(value) for value in values]
        if not scalars:
            return self._always(holds=False)
        comparable = self._comparable() if self._axis is None else self.values
        chosen = comparable.isin(pa.array(scalars, scalars[0].type))
        # Arrow calls null no member, and so its negation true; in SQL it is unknown.
        return pc.if_else(self.values.is_valid(), chosen, _UNKNOWN)

    def like(self, condition: Like) -> pc.Expression:
        """Tell which texts follow a pattern."""
        if not is_text(self._kind):
            self._fail(f"it holds {shown(self._kind)}, and LIKE is for text")
        return pc.match_substring_regex(self.values, _regex(condition.pattern, condition.escape))

    def holds(self) -> pc.Expression:
        """Take a boolean column as a condition."""
        if not pa.types.is_boolean(self._kind):
            self._fail(f"it holds {shown(self._kind)}: compare it with something, as in = 'a' or IS NOT NULL")
        return self.values

    def compare_column(self, sign: str, other: _Field) -> pc.Expression:
        """Compare every value with that of another column in its row."""
        one, two = self._kind, other._kind
        alike = (
            one == two
            or (is_text(one) and is_text(two))
            or (pa.types.is_floating(one) and pa.types.is_floating(two))
            or (pa.types.is_signed_integer(one) and pa.types.is_signed_integer(two))
            or (pa.types.is_unsigned_integer(one) and pa.types.is_unsigned_integer(two))
        )
        comparable = self._axis is not None or is_text(one) or pa.types.is_floating(one)
        if not alike or not (comparable or (pa.types.is_boolean(one) and sign in {"=", "<>"})):
            self._fail(
                f"it holds {shown(one)} and column {str(other._column)!r} {shown(two)}, which cannot be compared "
                f"with {sign}"
            )
        if is_text(one) and one != two:
            return _OPERATORS[sign](self.values.cast(pa.large_string()), other.values.cast(pa.large_string()))
        return _OPERATORS[sign](self._comparable(), other._comparable())


def _joined(
    join: Callable[[pc.Expression, pc.Expression], pc.Expression], parts: list[pc.Expression]
) -> pc.Expression:
    """Join many parts into a flat tree: Arrow walks a deep one by recursion, and a process without stack is killed."""
    while len(parts) > 1:
        pairs = [parts[n : n + 2] for n in range(0, len(parts), 2)]
        parts = [functools.reduce(join, pair) for pair in pairs]
    return parts[0]


def _regex(pattern: str, escape: str) -> str:
    parts = []
    signs = iter(pattern)
    for sign in signs:
        if escape and sign == escape:
            parts.append(_quoted(next(signs)))
        elif sign == "%":
            parts.append(".*")
        elif sign == "_":
            parts.append(".")
        else:
            parts.append(_quoted(sign))
    return rf"(?s)\A{''.join(parts)}\z"


def _quoted(sign: str) -> str:
    return f"\\{sign}" if sign in _SPECIAL else sign
