"""Arguments of the operators, checked at DAG parse time when they are literal, at run time when they are templates."""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import PurePath
from typing import Any, TypeAlias

from airflow_llm_provider.dataset.arrow.type_names import check_types
from airflow_llm_provider.dataset.sources.where.syntax import parse
from airflow_llm_provider.errors import LLMInputError
from airflow_llm_provider.prompt import prompt_of
from airflow_llm_provider.spec import CompletionSpec

#: Reads the argument of the given name.
Reader: TypeAlias = Callable[[str, Any], Any]

_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})


def is_deferred(value: object) -> bool:
    """Say whether ``value`` is known only when the task runs: a Jinja template, or the output of a task."""
    if isinstance(value, str):
        return "{{" in value or "{%" in value
    return hasattr(value, "resolve") and hasattr(value, "iter_references")


def as_text(name: str, value: Any) -> str:
    """Return a non-empty string.

    :raises LLMInputError: naming the argument, its value and the remedy.
    """
    if not isinstance(value, str) or value.strip() in ("", "None"):
        raise LLMInputError(f"{name} is {value!r}: give a non-empty string{_hint(value)}")
    return value.strip()


def as_location(name: str, value: Any) -> str:
    """Return a URL or path as a string, also from a path object.

    :raises LLMInputError: naming the argument, its value and the remedy.
    """
    is_path = isinstance(value, PurePath) or (hasattr(value, "protocol") and hasattr(value, "path"))
    return as_text(name, str(value) if is_path else value)


def as_optional_location(name: str, value: Any) -> str | None:
    """Return a URL or path as a string, or ``None`` for ``None`` and the empty string."""
    return None if value is None or value == "" else as_location(name, value)


def as_optional_text(name: str, value: Any) -> str | None:
    """Return a string; ``None`` for ``None`` and for the empty string, which is what an empty UI field sends."""
    return None if value is None or value == "" else as_text(name, value)


def as_optional_names(name: str, value: Any) -> list[str] | None:
    """Return a list of names, also from ``"a, b"`` or the text of a list, or ``None`` for ``None`` and the empty string.

    :raises LLMInputError: naming the argument, its value and the remedy.
    """
    if value is None or value == "":
        return None
    names: Any = value
    if isinstance(value, str):
        try:
            # What a template makes of a list.
            names = literal_eval(value) if value.lstrip().startswith("[") else value.split(",")
        except (ValueError, SyntaxError):
            names = []
    named = isinstance(names, (list, tuple)) and all(isinstance(n, str) and n.strip() for n in names)
    stripped = [n.strip() for n in names] if named else []
    if not stripped or len(set(stripped)) < len(stripped):
        raise LLMInputError(
            f"{name} is {value!r}: give a list of different names, such as ['id', 'body'] or 'id, body'{_hint(value)}"
        )
    return stripped


def as_optional_order(name: str, value: Any) -> str | None:
    """Return the order of rows in shards, or ``None`` for ``None`` and the empty string.

    :raises LLMInputError: naming the argument and its value.
    """
    if value in (None, "", "tokens"):
        return value or None
    raise LLMInputError(f"{name} is {value!r}: give 'tokens' or None{_hint(value)}")


def as_optional_condition(name: str, value: Any) -> str | None:
    """Return a condition that can be read, or ``None`` for ``None`` and the empty string.

    :raises LLMInputError: naming the character that cannot be read, or the remedy.
    """
    if value is None:
        return None
    if not isinstance(value, str):
        raise LLMInputError(
            f"{name} is a {type(value).__name__}: a DAG holds text, so give a condition such as \"lang = 'de'\""
        )
    if not value:
        return None
    condition = as_text(name, value)
    parse(condition)
    return condition


def as_optional_types(name: str, value: Any) -> dict[str, str] | None:
    """Return types by column, or ``None`` for ``None`` and what is empty.

    :raises LLMInputError: naming the column and the types there are.
    """
    if value is None or value in ("", {}):
        return None
    check_types(value)
    return {as_text(name, column): kind for column, kind in value.items()}


def as_delimiter(name: str, value: Any) -> str | None:
    """Return one character, a tab for its usual spelling, or ``None`` for ``None`` and the empty string.

    :raises LLMInputError: naming the argument and its value.
    """
    if value is None or value == "":
        return None
    character = "\t" if value == r"\t" else value
    if not isinstance(character, str) or len(character) != 1:
        raise LLMInputError(f"{name} is {value!r}: give one character")
    return character


def as_count(name: str, value: Any, *, minimum: int = 1) -> int:
    """Return a whole number, also from its text, which is what a rendered template is.

    :raises LLMInputError: naming the argument, its value and its bound.
    """
    number: Any = value
    if isinstance(value, str):
        text = value.strip().replace("_", "")
        number = int(text) if text.isascii() and text.removeprefix("-").isdigit() else None
    if not isinstance(number, int) or isinstance(number, bool) or number < minimum:
        raise LLMInputError(f"{name} is {value!r}: give a whole number of at least {minimum}{_hint(value)}")
    return number


def as_optional_count(name: str, value: Any, *, minimum: int = 1) -> int | None:
    """Return a whole number, or ``None`` for ``None`` and the empty string."""
    return None if value is None or value == "" else as_count(name, value, minimum=minimum)


def as_flag(name: str, value: Any) -> bool:
    """Return a boolean, also from its text: ``"False"`` is false here, where ``bool("False")`` is true.

    :raises LLMInputError: naming the argument and what it may be.
    """
    if isinstance(value, bool):
        return value
    text = value.strip().lower() if isinstance(value, str) else None
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise LLMInputError(f"{name} is {value!r}: give true or false{_hint(value)}")


def as_optional_flag(name: str, value: Any) -> bool | None:
    """Return a boolean, or ``None`` for ``None`` and the empty string."""
    return None if value is None or value == "" else as_flag(name, value)


def as_optional_dollars(name: str, value: Any) -> float | None:
    """Return a sum above 0, also from its text, or ``None`` for ``None`` and the empty string.

    :raises LLMInputError: naming the argument and its value.
    """
    if value is None or value == "":
        return None
    amount: Any = value
    if isinstance(value, str):
        text = value.strip().removeprefix("$")
        amount = float(text) if re.fullmatch(r"\d+(\.\d+)?|\.\d+", text, re.ASCII) else None
    if isinstance(amount, bool) or not isinstance(amount, (int, float)) or not 0 < amount < float("inf"):
        raise LLMInputError(f"{name} is {value!r}: give US dollars above 0, such as 2.5{_hint(value)}")
    return float(amount)


def as_optional_weights(name: str, value: Any) -> dict[str, int] | None:
    """Return connection ids with their weights, from such a mapping or a list of ids, or ``None`` for ``None``.

    :raises LLMInputError: naming the argument, its value and the remedy.
    """
    if value is None:
        return None
    if isinstance(value, Mapping):
        weights = {as_text(name, key): as_count(f"{name}[{key!r}]", weight) for key, weight in value.items()}
    elif isinstance(value, Sequence) and not isinstance(value, str):
        weights = dict.fromkeys((as_text(name, item) for item in value), 1)
    else:
        weights = {}
    if not weights or len(weights) < len(value):
        raise LLMInputError(
            f'{name} is {value!r}: give a list of different connection ids, or weights by id such as {{"a": 3, "b": 1}}'
        )
    return weights


def as_seconds(name: str, value: Any) -> float:
    """Return a positive, finite number of seconds.

    :raises LLMInputError: naming the argument and its value.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise LLMInputError(f"{name} is {value!r}: give a number of seconds above 0")
    return float(value)


def as_optional_seconds(name: str, value: Any) -> float | None:
    """Return a positive, finite number of seconds, or ``None``."""
    return None if value is None else as_seconds(name, value)


def as_optional_share(name: str, value: Any) -> float | None:
    """Return a share from 0 to 1, or ``None``.

    :raises LLMInputError: naming the argument and its value.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise LLMInputError(f"{name} is {value!r}: give a share from 0 to 1, such as 0.05 for 5 %, or None")
    return float(value)


def _hint(value: object) -> str:
    """Explain values that a template rendered to by accident."""
    return (
        " (a template that rendered to nothing; does the run have that param?)"
        if value in ("None", "")
        else ""
    )


def check_known(
    readers: Mapping[str, Reader], values: Mapping[str, Any], *, templated: Collection[str]
) -> None:
    """Check every value that is already known, so that a wrong one fails the DAG's parse and not its night.

    :param templated: names whose values may be templates.
    :raises LLMInputError: naming the argument, its value and its bound.
    """
    for name, read in readers.items():
        if name not in templated or not is_deferred(values[name]):
            read(name, values[name])


def check_given(
    readers: Mapping[str, Reader], values: Mapping[str, Any], *, templated: Collection[str]
) -> None:
    """Check what ``partial()`` was given of the arguments; the others come with ``expand()``, or have a default.

    :param templated: names whose values may be templates.
    :raises LLMInputError: naming the argument, its value and its bound.
    """
    check_known({name: read for name, read in readers.items() if name in values}, values, templated=templated)


def check_spec(spec: Any) -> None:
    """Refuse what is no spec, and a prompt that cannot be compiled or called, when the DAG is parsed and not at night.

    :raises LLMInputError: naming what is wrong with it.
    """
    if not isinstance(spec, CompletionSpec):
        raise LLMInputError(f"spec is a {type(spec).__name__}: give a CompletionSpec")
    prompt_of(spec)


def read_all(readers: Mapping[str, Reader], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return every value as what it means, once templates are rendered.

    :raises LLMInputError: naming the argument, its value and its bound.
    """
    return {name: read(name, values[name]) for name, read in readers.items()}
