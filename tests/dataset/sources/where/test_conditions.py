import datetime as dt
import random
from decimal import Decimal

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llm_provider.dataset.sources.where.row_filter import RowFilter
from airflow_llm_provider.dataset.sources.where.syntax import parse
from airflow_llm_provider.errors import LLMInputError


class TestConditions:
    @pytest.mark.parametrize(
        ("where", "rows"),
        [
            ("n = 1", [0]),
            ("1 < n", [1]),
            ("n == 9007199254740992", []),
            ("n = 9007199254740993.0", [1]),
            ("n <> 1", [1, 2]),
            ("n != 1.5", [0, 1, 2]),
            ("n < 1.5", [0, 2]),
            ("n > -5.5 AND n <= -5", [2]),
            ("n < 99999999999999999999", [0, 1, 2]),
            ("n = 99999999999999999999", []),
            ("NOT n = 99999999999999999999", [0, 1, 2]),
            ("small >= -128", [0, 1, 2]),
            ("small > 127 OR small < -128", []),
            ("small <= 127.5", [0, 1, 2]),
            ("u > 9223372036854775807", [1]),
            ("u >= -1", [0, 1, 2]),
            ("n BETWEEN -5 AND +1", [0, 2]),
            ("n NOT BETWEEN -5 AND 1", [1]),
            ("n IN (1, 2, -5, 1.5)", [0, 2]),
            ("n NOT IN (1, 99999999999999999999)", [1, 2]),
            ("n IN (1.5)", []),
            ("n NOT IN (1.5)", [0, 1, 2]),
            ("f > 1.4", [0]),
            ("f <> 1.5", [1, 2]),
            ("f = 0", [2]),
            ("f IS NULL", [3]),
            ("f32 = 0.1", []),
            ("f32 IN (1.5, 2)", [0, 2]),
            ("money = 1.2", [0]),
            ("money < 9.995", [0, 1, 2]),
            ("money IN (9.99, 9.991)", [1]),
            ("money > 1000", []),
            ("money > -1e3", [0, 1, 2]),
            ("text = 'it''s 100%'", [1]),
            ("text > 'b'", [0, 1]),
            ("text LIKE 'a_b'", [2]),
            ("text LIKE '%!%' ESCAPE '!'", [1]),
            ("text NOT LIKE '%e%'", [1, 2]),
            ("text LIKE 'd.'", []),
            ("big LIKE 'é_'", [1]),
            ("big LIKE ''", [2]),
            ("big = ''", [2]),
            ("text = big", [0]),
            ("n = n", [0, 1, 2]),
            ("small < n", [0, 1]),
            ("kind = 'p'", [0, 2]),
            ("kind LIKE 'q%'", [1]),
            ("kind IN ('q')", [1]),
            ("urgent", [0, 2]),
            ("NOT urgent", [1]),
            ("urgent = false", [1]),
            ("urgent IN (TRUE)", [0, 2]),
            ("day >= '2026-01-01'", [0, 1]),
            ("day > DATE '2026-01-01'", [1]),
            ("day > '2026-01-01 12:00:00'", [1]),
            ("day < '1970-01-01'", [2]),
            ("at >= '1970-01-01T00:00:01.5'", [1]),
            ("at < '1970-01-01'", [2]),
            ("at > '1970-01-01 00:00:00.0000001'", [1]),
            ("zoned = '1970-01-01T00:00:00.000000001Z'", [1]),
            ("zoned > '1970-01-01T09:00:00.000000001+09:00'", [2]),
            ("zoned = TIMESTAMP '1970-01-01'", [0]),
            ("time = '00:00:00.000001'", [1]),
            ("time > '23:00:00'", [2]),
            ("tags IS NOT NULL", [0, 1, 2]),
            ("address.city = 'Bonn'", [0]),
            ("address.city IS NULL", [1, 3]),
            ("\"odd name\" IN ('x', 'z') AND `odd name` <> 'x'", [2]),
            ("n = 1 OR n = -5 AND text = 'de'", [0]),
            ("(n = 1 OR n = -5) AND text = 'de'", [0]),
            ("not not n = 1", [0]),
            ("n is null or (((urgent)))", [0, 2, 3]),
            ("  n=1  ", [0]),
        ],
    )
    def test_take_what_they_say(self, taken, where, rows):
        assert taken(where) == rows

    @pytest.mark.parametrize(
        ("where", "message"),
        [
            ("", "character 1, the end: expected a column or a value"),
            ("n =", "character 4, the end"),
            ("n = 1 x", "character 7, 'x': expected AND, OR or the end"),
            ("n = 1;", "character 6, ';': a condition is one expression"),
            ("n = 1 -- all", "character 7, '-'"),
            ("n = = 1", "character 5, '='"),
            ("n + 1 = 2", "character 3, '+'"),
            ("(n = 1", "character 7, the end: expected ')'"),
            ("n IN ()", "character 7, ')'"),
            ("n = NULL", "character 5, 'NULL': nothing equals NULL: write IS NULL"),
            ("n IN (1, NULL)", "character 10, 'NULL'"),
            ("n IS 5", "character 6, '5': expected NULL"),
            ("n NOT 5", "character 7, '5': expected IN, LIKE or BETWEEN"),
            ("n BETWEEN 1 OR 2", "character 13, 'OR': expected AND"),
            ("lower(text) = 'x'", "character 6, '(': functions are not known"),
            ("text = 'de", 'character 8, "\'": this text is not closed'),
            ('"text = 5', "this column name is not closed"),
            ("text LIKE n", "character 11, 'n': expected a pattern"),
            ("text LIKE '!x' ESCAPE '!'", "character 23, '!': the pattern has this character before"),
            ("text LIKE 'x' ESCAPE '!!'", "expected one character"),
            ("'a' = 'b'", "expected a column on one side"),
            ("5", "expected a comparison"),
            ("n = x'5'", "expected AND, OR or the end"),
            ("n = 1e999", "beyond the range of floats"),
            ("f = 1e399", "beyond the range of floats"),
            ("n = #", "character 5, '#': it belongs to no condition"),
            ("SELECT 1", "character 1, 'SELECT'"),
            ("address. = 1", "character 10, '=': expected a name"),
            ("nosuch = 1", "character 1: there is no column 'nosuch'"),
            ("n = 1 OR N = 1", "character 10: there is no column 'N'; did you mean 'n'? There is 'row', 'n'"),
            ("address.town = 'x'", "no column 'town' in column 'address'. There is 'city'"),
            ("text.x = 'x'", "no column 'x' in column 'text'. There is nothing"),
            ("n = 'x'", "column 'n': it holds integers: compare it with a number, without quotes"),
            ("text = 5", "column 'text': it holds text: quote the value"),
            ("kind IN ('p', 5)", "column 'kind': it holds text"),
            ("f = 'x'", "it holds floats"),
            ("money = TRUE", "it holds decimals"),
            ("urgent > TRUE", "booleans are compared with = and <> only"),
            ("urgent = 1", "compare it with TRUE or FALSE"),
            ("text", "column 'text': it holds text: compare it with something"),
            ("day = 'yesterday'", "it holds dates: compare it with a text such as '2026-01-31'"),
            ("day = 5", "it holds dates"),
            ("at = '2026-01-01T00:00:00Z'", "it holds timestamps without a time zone: leave the offset out"),
            ("time = '25:00'", "it holds times"),
            ("time = '08:00Z'", "leave the offset out"),
            ("tags = 'a'", "for which there is only IS NULL"),
            ("tags LIKE 'a'", "LIKE is for text"),
            ("n LIKE '5'", "LIKE is for text"),
            ("n = f", "it holds integers and column 'f' floats, which cannot be compared with ="),
            ("urgent < urgent", "cannot be compared with <"),
            ("(" * 101 + "n = 1", "more than 100 conditions inside each other"),
            ("NOT " * 101 + "n = 1", "more than 100 conditions inside each other"),
            (" OR ".join(["n = 1"] * 1001), "more than 1,000 comparisons: list the values"),
            ("n = 1" + " " * 200_000, "at most 200,000 are read"),
            ("text = '\ud800'", "half of a surrogate pair"),
        ],
    )
    def test_that_make_no_sense_name_the_place(self, taken, where, message):
        with pytest.raises(LLMInputError) as caught:
            taken(where)
        assert message in str(caught.value)
        assert len(str(caught.value)) < 500

    def test_long_ones_do_not_end_the_process(self, taken):
        assert taken(" OR ".join(f"n = {value}" for value in range(1000))) == [0]
        assert taken(f"n IN ({', '.join(map(str, range(20_000)))})") == [0]
        assert taken("(" * 99 + "n = 1" + ")" * 99) == [0]

    @given(
        st.text(
            st.sampled_from("n text urgent ANDORINISNULLLIKE '\"`()=<>,.-+0123456789eE_%;\\\0\ud800é"),
            max_size=40,
        )
    )
    def test_any_text_is_a_condition_or_an_error_of_ours(self, text):
        try:
            parse(text)
        except LLMInputError:
            return


class TestExpressions:
    def test_of_arrow_are_taken_as_they_are(self, taken, schema):
        assert taken((pc.field("n") > 0) & (pc.field("urgent"))) == [0]
        assert RowFilter.of(pc.field("n") + pc.field("small") > 0, schema).columns == {"n", "small"}

    @pytest.mark.parametrize(
        ("where", "message"),
        [
            (
                pc.field("nosuch") > 1,
                "does not fit the columns of the source (No match for FieldRef.Name(nosuch)",
            ),
            (pc.field("n"), "must evaluate to bool"),
            (5, "where is a int: give a condition as text"),
        ],
    )
    def test_that_do_not_fit_are_refused(self, taken, where, message):
        with pytest.raises(LLMInputError) as caught:
            taken(where)
        assert message in str(caught.value)

    def test_that_fail_for_a_row_do_not_show_it(self, taken):
        with pytest.raises(LLMInputError, match="cannot be computed for some row") as caught:
            taken(pc.field("text").cast(pa.int64()) > 1)
        assert "100%" not in str(caught.value)


class TestFiles:
    def test_of_which_no_row_can_be_taken_are_known(self, schema):
        folders = [{"text": "a"}, {"text": "b"}, {"text": None}]
        for where, may in (
            ("text = 'a'", [True, False, False]),
            ("NOT text = 'a'", [False, True, False]),
            ("text IS NULL OR text = 'b'", [False, True, True]),
            ("text = 'a' AND n > 3", [True, False, False]),
            ("text = 'a' OR n > 3", [True, True, True]),
            ("text NOT IN ('a', 'c')", [False, True, False]),
            ("text LIKE 'a%'", [True, False, False]),
            ("n > 3", [True, True, True]),
            (pc.field("text") == "b", [False, True, False]),
        ):
            assert RowFilter.of(where, schema).may_match(folders) == may


def quoted(text):
    return "'" + text.replace("'", "''") + "'"


_TEXTS = st.text(st.sampled_from("ab%_'é \n\\."), max_size=3)
_PATTERNS = st.lists(st.sampled_from(["a", "b", "%", "_", "!%", "!_", "!!", "'", "."]), max_size=4).map(
    "".join
)
_INTEGERS = st.integers(-3, 3)
_DECIMALS = st.integers(-300, 300).map(lambda cents: Decimal(cents).scaleb(-2))
_DAYS = st.integers(-3, 3).map(lambda day: f"20{26 + day:02d}-01-01")
_TYPES = {
    "n": pa.int64(),
    "d": pa.decimal128(9, 2),
    "f": pa.float64(),
    "t": pa.string(),
    "day": pa.date32(),
    "b": pa.bool_(),
}
#: Literals that hit, miss and lie between the values of a column.
_LITERALS = {
    "n": st.one_of(_INTEGERS, _DECIMALS).map(str),
    "d": st.one_of(_INTEGERS, _DECIMALS, st.integers(-3000, 3000).map(lambda n: Decimal(n).scaleb(-3))).map(
        str
    ),
    "f": st.one_of(_INTEGERS, st.integers(-6, 6).map(lambda half: half / 2)).map(str),
    "t": _TEXTS.map(quoted),
    "day": _DAYS.map(quoted),
    "b": st.booleans().map(str),
}


@st.composite
def comparisons(draw):
    name = draw(st.sampled_from(sorted(_TYPES)))
    literal = _LITERALS[name]
    sign = draw(st.sampled_from(["=", "<>"] if name == "b" else ["=", "<>", "<", "<=", ">", ">="]))
    negated = draw(st.sampled_from(["", "NOT "]))
    forms = [
        f"{name} {sign} {draw(literal)}",
        f"{draw(literal)} {sign} {name}",
        f"{name} {negated}IN ({', '.join(draw(st.lists(literal, min_size=1, max_size=3)))})",
        f"{name} IS {negated}NULL",
        f"t {negated}LIKE {quoted(draw(_PATTERNS))} ESCAPE '!'",
        f"{negated}b",
    ]
    if name != "b":
        forms.append(f"{name} {negated}BETWEEN {draw(literal)} AND {draw(literal)}")
    return draw(st.sampled_from(forms))


_CONDITIONS = st.recursive(
    comparisons(),
    lambda parts: st.one_of(
        parts.map(lambda part: f"NOT ({part})"),
        st.tuples(parts, st.sampled_from(["AND", "OR"]), parts).map(lambda p: f"({p[0]}) {p[1]} {p[2]}"),
    ),
    max_leaves=4,
)


@pytest.fixture(scope="module")
def many():
    """A table in which every value, and null, meets every other."""
    rng = random.Random(7)
    values = {
        "n": range(-3, 4),
        "d": [Decimal(cents).scaleb(-2) for cents in (-300, -101, -100, 0, 1, 99, 100, 250, 300)],
        "f": [half / 2 for half in range(-6, 7)],
        "t": ["", "a", "b", "ab", "ba", "%", "_", "a%b", "é", "'", "\\", "a.b", " ", "\n", "a\nb"],
        "day": [dt.date(2026 + year, 1, 1) for year in range(-3, 4)],
        "b": [True, False],
    }
    rows = 400
    columns = {
        name: pa.array([rng.choice([None, *some]) for _ in range(rows)], _TYPES[name])
        for name, some in values.items()
    }
    return pa.table({"row": pa.array(range(rows), pa.int64()), **columns})


@pytest.fixture(scope="module")
def database(many):
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE t AS SELECT * FROM many")
        yield connection


class TestAgainstDuckDB:
    @settings(max_examples=80)
    @given(where=_CONDITIONS)
    def test_the_same_rows_are_taken(self, many, database, where):
        row_filter = RowFilter.of(where, many.schema)
        ours = [
            row for batch in many.to_batches() for row in row_filter.take(batch).column("row").to_pylist()
        ]
        theirs = database.execute(f"SELECT row FROM t WHERE {where} ORDER BY row").fetchall()  # noqa: S608
        assert ours == [row for (row,) in theirs]

    @given(number=st.decimals(-200, 200, places=2), sign=st.sampled_from(["=", "<>", "<", "<=", ">", ">="]))
    def test_small_integers_are_compared_exactly(self, number, sign):
        batch = pa.record_batch({"v": pa.array(range(-128, 128), pa.int8())})
        compare = {
            "=": lambda v: v == number,
            "<>": lambda v: v != number,
            "<": lambda v: v < number,
            "<=": lambda v: v <= number,
            ">": lambda v: v > number,
            ">=": lambda v: v >= number,
        }[sign]
        taken = RowFilter.of(f"v {sign} {number}", batch.schema).take(batch).column("v").to_pylist()
        assert taken == [value for value in range(-128, 128) if compare(value)]
