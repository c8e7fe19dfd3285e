"""The words of a condition, each with its place."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_llm_provider.errors import LLMInputError

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Longest condition, in characters: enough for thousands of ids, and no way to fill the memory.
LONGEST = 200_000
_TOKEN = re.compile(
    r"""
    (?P<space>\s+)
  | (?P<text>'(?:[^']|'')*')
  | (?P<quoted>"(?:[^"]|"")+"|`(?:[^`]|``)+`)
  | (?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)
  | (?P<name>[^\W\d]\w*)
  | (?P<sign><=|>=|<>|!=|==|[=<>(),.+-])
    """,
    re.VERBOSE,
)
_HALF_PAIR = re.compile("[\ud800-\udfff]")
_REMEDIES = {
    "'": "this text is not closed: end it with ', and write a ' inside it twice",
    '"': 'this column name is not closed: end it with "',
    "`": "this column name is not closed: end it with `",
    ";": "a condition is one expression, without ';'",
}


@dataclass(frozen=True, slots=True)
class Token:
    """One word.

    :param kind: ``text``, ``quoted``, ``number``, ``name``, ``sign`` or ``end``.
    :param value: what it means: without its quotes.
    :param place: its first character, from 1.
    """

    kind: str
    value: str
    place: int

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else repr(self.value)

    def is_word(self, word: str) -> bool:
        """Tell whether it is a keyword, in whatever case."""
        return self.kind == "name" and self.value.upper() == word


def tokens_of(text: str) -> Iterator[Token]:
    """Yield the words of a condition, and an end.

    :raises LLMInputError: naming the character that belongs to no word.
    """
    if len(text) > LONGEST:
        raise LLMInputError(
            f"where has {len(text):,} characters, at most {LONGEST:,} are read: filter by a column of the source instead"
        )
    half = _HALF_PAIR.search(text)
    if half is not None:
        raise LLMInputError(
            f"where, character {half.start() + 1}: half of a surrogate pair, which no column holds: leave it out"
        )
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            sign = text[position]
            remedy = _REMEDIES.get(
                sign, "it belongs to no condition: quote texts as 'text', odd names as \"name\""
            )
            raise LLMInputError(f"where, character {position + 1}, {sign!r}: {remedy}")
        kind = str(match.lastgroup)
        if kind != "space":
            yield Token(kind, _meaning(kind, match[0]), position + 1)
        position = match.end()
    yield Token("end", "", len(text) + 1)


def _meaning(kind: str, word: str) -> str:
    if kind not in {"text", "quoted"}:
        return word
    quote = word[0]
    return word[1:-1].replace(quote * 2, quote)
