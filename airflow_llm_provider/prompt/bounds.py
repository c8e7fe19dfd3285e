"""How much a template may make of one row: loops, powers, paddings and formats end in an error, not in a full memory.

What an operation would make is worked out before it runs, from the sizes of what it is given. What is printed, and how often
loops go round, is added up. No message says a size: widths and factors are often values of the row.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, MappingView, Sequence
from string import Formatter
from typing import Any

from jinja2.utils import Namespace

from airflow_llm_provider.prompt.text import RowRenderError, print_value

#: Characters, or items of a list, that one operation may make, and all printing together. No model takes so long a prompt.
MOST_MADE = 10_000_000
#: Decimal digits of a whole number: Python prints no longer ones.
_MOST_DIGITS = 4300
_MOST_BITS = _MOST_DIGITS * 10 // 3
_MOST_NUMBERS = 100_000

#: Width, precision and kind of a ``%`` conversion; its key may hold brackets.
_CONVERSION = re.compile(
    r"%(?:\((?:[^()]|\([^()]*\))*\))?[#0\- +]*(\*|\d+)?(?:\.(\*|\d+))?[hlL]?(.)", re.DOTALL
)
_DIGITS = re.compile(r"\d+")


def check_size(what: str, size: int) -> None:
    """Refuse an operation that would make too much.

    :param what: the operation.
    :raises RowRenderError: when it would.
    """
    if size > MOST_MADE:
        raise RowRenderError(
            f"{what} would make more than {MOST_MADE:,} characters or items: give it a smaller number, or shorter texts"
        )


def bounded_text(value: Any) -> str:
    """Print a value as it goes into the prompt.

    :raises RowRenderError: when its text would be too long, or there is none.
    """
    _check_printing(value)
    return print_value(value)


def _check_printing(value: Any) -> None:
    """Refuse to print what would be too long: a list that holds another one twice takes no memory before it is printed."""
    if isinstance(value, _TEXTLESS):
        print_value(value)
    # Each list is walked once, however often it is held: one that was doubled over and over would take years.
    sizes: dict[int, int] = {}
    unseen: list[tuple[Any, int, list[Any]]] = [(value, 0, [])] if isinstance(value, _NESTED) else []
    while unseen:
        nested, size, inner = unseen.pop()
        if inner:
            size += sum(sizes[id(item)] for item in inner)
        elif id(nested) in sizes:
            continue
        else:
            size, inner = _walked(nested)
            if inner:
                sizes[id(nested)] = 0
                unseen.append((nested, size, inner))
                unseen += [(item, 0, []) for item in inner]
                continue
        check_size("printing", size)
        sizes[id(nested)] = size


def _walked(nested: Any) -> tuple[int, list[Any]]:
    """Return about what a list or an object prints but for those inside it, and these."""
    size, inner = 1 + len(nested), []
    for item in itertools.chain(nested, nested.values()) if isinstance(nested, dict) else nested:
        if isinstance(item, str):
            size += len(item)
        elif isinstance(item, int):
            size += item.bit_length() * 3 // 10
        elif isinstance(item, _NESTED):
            inner.append(item)
        elif isinstance(item, _TEXTLESS):
            print_value(item)
    return size, inner


def bounded_range(*args: int) -> range:
    """Make a range, as Python does.

    :raises RowRenderError: when it has too many numbers.
    """
    numbers = range(*args)
    if -(-(numbers.stop - numbers.start) // numbers.step) > _MOST_NUMBERS:
        raise RowRenderError(
            f"range() would have more than {_MOST_NUMBERS:,} numbers: give it smaller bounds, or slice a list"
        )
    return numbers


def check_operation(operator: str, left: Any, right: Any) -> None:
    """Refuse an operation on two values that would make too much.

    :param operator: ``+``, ``*``, ``**`` or ``%``.
    :raises RowRenderError: when it would.
    """
    if isinstance(left, (int, float)) and isinstance(right, (int, float)):
        if operator in {"*", "**"} and isinstance(left, int) and isinstance(right, int):
            _check_digits(operator, left, right)
    elif operator == "%":
        if isinstance(left, (str, bytes)):
            check_size("%", percent_size(left, right))
    elif operator == "+":
        if isinstance(left, _SIZED) and isinstance(right, _SIZED):
            check_size("+", len(left) + len(right))
    elif operator == "*":
        for many, times in ((left, right), (right, left)):
            if isinstance(many, _SIZED) and isinstance(times, int):
                # Lists count as what they would print: a list of lists shares its items.
                each = many if isinstance(many, (str, bytes)) else bounded_text(many)
                check_size("*", times * len(each))


_SIZED = (str, bytes, list, tuple)
_NESTED = (list, tuple, dict)
#: What holds values and has no text of its own in a prompt, though Python prints it with all it holds.
_TEXTLESS = (MappingView, Namespace)


def _check_digits(operator: str, left: int, right: int) -> None:
    own = left.bit_length()
    bits = (own - 1) * right if operator == "**" else own + right.bit_length()
    if bits > _MOST_BITS:
        raise RowRenderError(
            f"{operator} would make a number of more than {_MOST_DIGITS:,} digits, which nobody prints: use smaller numbers"
        )


def percent_size(text: str | bytes, values: Any) -> int:
    """Return how long ``text % values`` may be."""
    pattern = text if isinstance(text, str) else text.decode("latin-1")
    given = values if isinstance(values, tuple) else (values,)
    following = iter(given)
    widths = []
    for width, precision, kind in _CONVERSION.findall(pattern):
        widths += [next(following, None) if each == "*" else each for each in (width, precision)]
        if kind != "%":
            next(following, None)
    return _filled_size(pattern, widths, given)


def format_size(text: str, args: Sequence[Any], named: Mapping[Any, Any]) -> int:
    """Return how long a text is in which fields are filled by ``args`` and ``named``."""
    number = itertools.count()
    widths: list[Any] = []
    for _, field, spec, _ in Formatter().parse(text):
        if field is not None and not _first_name(field):
            next(number)
        for literal, width, _, _ in Formatter().parse(spec or ""):
            widths.append(literal)
            if width is not None:
                name = _first_name(width) or str(next(number))
                widths.append(args[int(name)] if name.isdecimal() else named[name])
    return _filled_size(text, widths, (*args, *named.values()))


def _first_name(field: str) -> str:
    return re.split(r"[.\[]", field, maxsplit=1)[0]


def _filled_size(text: str, widths: Iterable[Any], values: Iterable[Any]) -> int:
    """Add up: all numbers in what says how wide something is, and each value as often as it could be named."""
    size = len(text) + sum(
        int(digits) for width in widths for digits in _DIGITS.findall(_pythons_text(width))
    )
    places = text.count("%") + text.count("{")
    return size + places * sum(len(_pythons_text(value)) for value in values)


def _pythons_text(value: Any) -> str:
    _check_printing(value)
    return str(value)


def _padded_size(text: str | bytes, width: int = 80, *_: Any) -> int:
    return max(len(text), width)


def _replaced_size(text: str, old: str, new: str, *_: Any, **__: Any) -> int:
    return len(text) + text.count(old) * len(new)


def joined_size(text: str | bytes, items: Iterable[Any]) -> int:
    """Return how long ``text.join(items)`` is."""
    return sum(len(item) + len(text) for item in items)


def _expanded_size(text: str | bytes, tabsize: int = 8) -> int:
    tabs = len(text) - len(text.expandtabs(0))
    return len(text) + tabs * tabsize


def _translated_size(text: str | bytes, table: Any, **_: Any) -> int:
    values = table.values() if isinstance(table, Mapping) else table
    return len(text) * max((len(value) for value in values if isinstance(value, str)), default=1)


def _indented_size(text: str, width: int | str = 4, *_: Any, **__: Any) -> int:
    return len(text) + (len(text.splitlines()) + 1) * (len(width) if isinstance(width, str) else width)


def _wrapped_size(text: str, width: int = 79, *more: Any, **named: Any) -> int:
    wrap = named.get("wrapstring", more[1] if len(more) > 1 else None) or "\n"
    # Of two lines that follow each other, the second begins with what the first had no room for.
    lines = 2 * len(text) // max(1, width) + len(text.splitlines()) + 1
    return len(text) + lines * len(wrap)


#: What methods of texts, bytes and whole numbers make, for those that can make more than a few times what they are given.
METHOD_SIZES: Mapping[str, Callable[..., int]] = {
    "center": _padded_size,
    "expandtabs": _expanded_size,
    "format": lambda text, *args, **named: format_size(text, args, named),
    "format_map": lambda text, named: format_size(text, (), named),
    "join": joined_size,
    "ljust": _padded_size,
    "replace": _replaced_size,
    "rjust": _padded_size,
    "to_bytes": lambda _, length=1, *__, **___: length,
    "translate": _translated_size,
    "zfill": _padded_size,
}
#: The same of filters.
FILTER_SIZES: Mapping[str, Callable[..., int]] = {
    "batch": lambda _, linecount, *__, **___: linecount,
    "center": _padded_size,
    "format": lambda text, *args, **kwargs: percent_size(text, kwargs or args),
    "indent": _indented_size,
    "replace": lambda text, old, new, *_, **__: _replaced_size(text, _pythons_text(old), _pythons_text(new)),
    # The time goes with the square of the digits.
    "round": lambda _, precision=0, *__, **___: precision * precision,
    # Each is a list, which takes as long to make as a hundred items.
    "slice": lambda _, slices, *__, **___: 100 * slices,
    "string": len,
    "wordwrap": _wrapped_size,
}
