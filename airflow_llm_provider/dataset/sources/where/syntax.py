"""From the text of a condition to what it says. The standard library only: a DAG file pays nothing for it.

::

    condition  = every { OR every }
    every      = single { AND single }
    single     = NOT single | "(" condition ")" | test
    test       = column | operand sign operand | column [NOT] IN "(" literal { "," literal } ")"
               | column [NOT] LIKE text [ESCAPE text] | column [NOT] BETWEEN literal AND literal
               | column IS [NOT] NULL
    operand    = column | literal
    sign       = "=" | "==" | "<>" | "!=" | "<" | "<=" | ">" | ">="
    column     = name { "." name }
    literal    = text | [DATE | TIMESTAMP | TIME] text | ["+" | "-"] number | TRUE | FALSE
"""

from __future__ import annotations

from decimal import Decimal
from typing import NoReturn

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
from airflow_llm_provider.dataset.sources.where.tokens import Token, tokens_of
from airflow_llm_provider.errors import LLMInputError

_SIGNS = {"=": "=", "==": "=", "<>": "<>", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_MIRRORED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_KEYWORDS = frozenset(
    "AND OR NOT IN IS NULL LIKE BETWEEN ESCAPE TRUE FALSE SELECT FROM WHERE CASE CAST ILIKE".split()  # noqa: SIM905
)
#: Words before a text that only say what SQL would take it for; here the column decides.
_KINDS = frozenset({"DATE", "TIMESTAMP", "TIME"})
#: Deepest nesting: far more than a person writes, far less than Python's stack holds.
_DEEPEST = 100
_LONGEST_EXPONENT = 400
#: Most tests of one condition: Arrow walks a long chain of them by recursion, and crashes beyond ten thousand.
_MOST_TESTS = 1000


def parse(text: str) -> Condition:
    """Read a condition.

    :raises LLMInputError: naming the character and what belongs there.
    """
    parser = _Parser(text)
    condition = parser.condition()
    parser.expect_end()
    return condition


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = list(tokens_of(text))
        self._next = 0
        self._depth = 0
        self._tests = 0

    @property
    def _token(self) -> Token:
        return self._tokens[self._next]

    def _take(self) -> Token:
        token = self._token
        self._next += 1
        return token

    def _fail(self, wanted: str) -> NoReturn:
        raise LLMInputError(f"where, character {self._token.place}, {self._token}: {wanted}")

    def _took_word(self, *words: str) -> bool:
        """Take some keywords, if all of them come now."""
        coming = self._tokens[self._next : self._next + len(words)]
        if len(coming) < len(words) or not all(map(Token.is_word, coming, words)):
            return False
        self._next += len(words)
        return True

    def _took_sign(self, sign: str) -> bool:
        if self._token.kind == "sign" and self._token.value == sign:
            self._next += 1
            return True
        return False

    def _expect_sign(self, sign: str) -> None:
        if not self._took_sign(sign):
            self._fail(f"expected {sign!r}")

    def expect_end(self) -> None:
        if self._token.kind != "end":
            self._fail("expected AND, OR or the end")

    def condition(self) -> Condition:
        parts = [self._every()]
        while self._took_word("OR"):
            parts.append(self._every())
        return parts[0] if len(parts) == 1 else Either(tuple(parts))

    def _every(self) -> Condition:
        parts = [self._single()]
        while self._took_word("AND"):
            parts.append(self._single())
        return parts[0] if len(parts) == 1 else Both(tuple(parts))

    def _single(self) -> Condition:
        self._depth += 1
        if self._depth > _DEEPEST:
            self._fail(f"more than {_DEEPEST} conditions inside each other: write it flatter")
        if self._took_word("NOT"):
            single: Condition = Not(self._single())
        elif self._took_sign("("):
            single = self.condition()
            self._expect_sign(")")
        else:
            self._tests += 1
            if self._tests > _MOST_TESTS:
                self._fail(f"more than {_MOST_TESTS:,} comparisons: list the values of a column with IN (…)")
            single = self._test()
        self._depth -= 1
        return single

    def _test(self) -> Condition:
        left = self._operand()
        if self._token.kind == "sign" and self._token.value in _SIGNS:
            sign = _SIGNS[self._take().value]
            return self._compared(left, sign, self._operand())
        if not isinstance(left, Column):
            self._fail("expected a comparison, such as =")
        if self._took_word("IS"):
            negated = self._took_word("NOT")
            if not self._took_word("NULL"):
                self._fail("expected NULL")
            return _negated(Missing(left), negated=negated)
        negated = self._took_word("NOT")
        if self._took_word("IN"):
            return _negated(Among(left, self._list()), negated=negated)
        if self._took_word("LIKE"):
            return _negated(self._like(left), negated=negated)
        if self._took_word("BETWEEN"):
            low = self._literal()
            if not self._took_word("AND"):
                self._fail("expected AND")
            between = Both((Compare(left, ">=", low), Compare(left, "<=", self._literal())))
            return _negated(between, negated=negated)
        if negated:
            self._fail("expected IN, LIKE or BETWEEN")
        return Holds(left)

    def _compared(self, left: Column | Literal, sign: str, right: Column | Literal) -> Condition:
        if isinstance(left, Column):
            return Compare(left, sign, right)
        if isinstance(right, Column):
            return Compare(right, _MIRRORED[sign], left)
        self._next -= 1
        return self._fail(
            'expected a column on one side of the comparison; column names need no quotes, or "…"'
        )

    def _list(self) -> tuple[Literal, ...]:
        self._expect_sign("(")
        values = [self._literal()]
        while self._took_sign(","):
            values.append(self._literal())
        self._expect_sign(")")
        return tuple(values)

    def _like(self, column: Column) -> Like:
        pattern = self._text("expected a pattern, such as 'a%'")
        if not self._took_word("ESCAPE"):
            return Like(column, pattern, "")
        place = self._next
        escape = self._text("expected one character, such as '!'")
        if len(escape) != 1:
            self._next = place
            self._fail("expected one character, such as '!'")
        unescaped = pattern.replace(escape * 2, "").replace(f"{escape}%", "").replace(f"{escape}_", "")
        if escape in unescaped:
            self._next = place
            self._fail("the pattern has this character before something else than %, _ or itself")
        return Like(column, pattern, escape)

    def _text(self, wanted: str) -> str:
        if self._token.kind != "text":
            self._fail(wanted)
        return self._take().value

    def _operand(self) -> Column | Literal:
        return self._column() if self._is_column() else self._literal()

    def _is_column(self) -> bool:
        token = self._token
        if token.kind == "quoted":
            return True
        return token.kind == "name" and token.value.upper() not in _KEYWORDS and not self._is_kind()

    def _is_kind(self) -> bool:
        """Tell ``DATE '2026-01-01'`` from a column named date."""
        token = self._token
        return (
            token.kind == "name"
            and token.value.upper() in _KINDS
            and self._tokens[self._next + 1].kind == "text"
        )

    def _column(self) -> Column:
        place = self._token.place
        path = [self._take().value]
        while self._took_sign("."):
            if self._token.kind not in {"name", "quoted"}:
                self._fail("expected a name")
            path.append(self._take().value)
        if self._token.kind == "sign" and self._token.value == "(":
            self._fail("functions are not known; what is: = <> < <= > >= IN LIKE BETWEEN IS NULL AND OR NOT")
        return Column(tuple(path), place)

    def _literal(self) -> Literal:
        if self._is_kind():
            self._take()
        token = self._token
        if token.kind == "text":
            return self._take().value
        for word in ("TRUE", "FALSE"):
            if self._took_word(word):
                return word == "TRUE"
        if token.is_word("NULL"):
            self._fail("nothing equals NULL: write IS NULL or IS NOT NULL")
        if token.kind in {"name", "quoted"}:
            self._fail(
                "expected a value: quote texts as 'text'; a name that is a keyword is written \"name\""
            )
        return self._number()

    def _number(self) -> Decimal:
        negative = self._took_sign("-")
        if not negative:
            self._took_sign("+")
        if self._token.kind != "number":
            self._fail("expected a column or a value")
        _, _, exponent = self._token.value.lower().partition("e")
        if exponent and (
            len(exponent) > len(str(_LONGEST_EXPONENT)) + 1 or abs(int(exponent)) > _LONGEST_EXPONENT
        ):
            self._fail("this number is beyond the range of floats")
        number = Decimal(self._take().value)
        return number.copy_negate() if negative else number


def _negated(condition: Condition, *, negated: bool) -> Condition:
    return Not(condition) if negated else condition
