"""Types whose values are whole numbers on a line: integers, decimals, dates, timestamps, times.

A literal has an exact place on the line of its column, perhaps between two values, perhaps beyond the last. So ``5.5``,
``3000000000`` and ``1.999`` are compared as they are with columns of integers and of decimals of two digits.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import TypeAlias

import pyarrow as pa

from airflow_llm_provider.dataset.sources.where.condition import Literal
from airflow_llm_provider.errors import LLMInputError

_Position: TypeAlias = Callable[[Literal], Fraction]
_A_DAY = 86_400
_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
#: Python reads six digits of a second and drops the others.
_FRACTION = re.compile(r"(.*\d\d:\d\d)\.(\d+)(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Axis:
    """The line of a type.

    :param low: first place.
    :param high: last place.
    :param position: finds the place of a literal; raises :class:`LLMInputError` for one of another kind.
    :param scalar: makes the value at a place.
    """

    low: int
    high: int
    position: _Position
    scalar: Callable[[int], pa.Scalar]


def axis_of(kind: pa.DataType) -> Axis | None:
    """Return the line of a type; ``None``: its values lie on none."""
    if pa.types.is_integer(kind):
        signed = pa.types.is_signed_integer(kind)
        low, high = _range(kind.bit_width, signed=signed)
        return Axis(low, high, _number("integers"), lambda place: pa.scalar(place, kind))
    if pa.types.is_decimal(kind):
        most = 10**kind.precision - 1
        return Axis(-most, most, _number("decimals", 10**kind.scale), lambda place: _decimal(place, kind))
    if pa.types.is_temporal(kind) and not pa.types.is_duration(kind) and not pa.types.is_interval(kind):
        low, high = _range(kind.bit_width, signed=True)
        return Axis(low, high, _temporal(kind), lambda place: pa.scalar(place, kind))
    return None


def _range(bits: int, *, signed: bool) -> tuple[int, int]:
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)


def _number(name: str, scale: int = 1) -> _Position:
    def position(value: Literal) -> Fraction:
        if not isinstance(value, Decimal):
            raise LLMInputError(f"it holds {name}: compare it with a number, without quotes")
        return Fraction(value) * scale

    return position


def _decimal(place: int, kind: pa.DataType) -> pa.Scalar:
    digits = tuple(int(digit) for digit in str(abs(place)))
    return pa.scalar(Decimal((int(place < 0), digits, -kind.scale)), kind)


def _temporal(kind: pa.DataType) -> _Position:
    if pa.types.is_time(kind):
        return _time(_UNITS[kind.unit])
    if pa.types.is_date(kind):
        scale = Fraction(1, _A_DAY) if pa.types.is_date32(kind) else Fraction(1000)
        return _moment(scale, name="dates", example="'2026-01-31'", zone=None)
    return _moment(
        Fraction(_UNITS[kind.unit]), name="timestamps", example="'2026-01-31 08:30:00'", zone=kind.tz
    )


def _moment(scale: Fraction, *, name: str, example: str, zone: str | None) -> _Position:
    def position(value: Literal) -> Fraction:
        text, part = _split_second(value)
        try:
            moment = dt.datetime.fromisoformat(text)
        except ValueError:
            raise LLMInputError(f"it holds {name}: compare it with a text such as {example}") from None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=dt.UTC)
        elif zone is None:
            raise LLMInputError(f"it holds {name} without a time zone: leave the offset out, as in {example}")
        since = moment - _EPOCH
        return (since.days * _A_DAY + since.seconds + Fraction(since.microseconds, 10**6) + part) * scale

    return position


def _time(scale: int) -> _Position:
    def position(value: Literal) -> Fraction:
        text, part = _split_second(value)
        try:
            time = dt.time.fromisoformat(text)
        except ValueError:
            raise LLMInputError("it holds times: compare it with a text such as '08:30:00'") from None
        if time.tzinfo is not None:
            raise LLMInputError("it holds times without a time zone: leave the offset out, as in '08:30:00'")
        return (
            time.hour * 3600 + time.minute * 60 + time.second + Fraction(time.microsecond, 10**6) + part
        ) * scale

    return position


def _split_second(value: Literal) -> tuple[str, Fraction]:
    """Take the parts of a second off, all of their digits."""
    if not isinstance(value, str):
        return "", Fraction(0)
    match = _FRACTION.fullmatch(value.strip())
    if match is None:
        return value.strip(), Fraction(0)
    return match[1] + match[3], Fraction(int(match[2]), 10 ** len(match[2]))
