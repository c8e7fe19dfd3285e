from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llm_provider import CompletionSpec
from airflow_llm_provider.errors import LLMInputError
from airflow_llm_provider.prompt import PromptTemplate, RowRenderError


def template(prompt: str, **spec) -> PromptTemplate:
    return PromptTemplate(CompletionSpec(model="m", prompt=prompt, **spec))


def rendered(prompt: str, **row) -> str:
    return template(prompt).messages(row)[-1]["content"]


#: A condition that is always true: the same prompt by way of Jinja's compiler instead of the short cut.
def by_jinja(prompt: str) -> str:
    return "{% if true %}" + prompt + "{% endif %}"


class TestMessages:
    def test_system_comes_first_and_is_not_rendered(self):
        messages = template("{{ a }}", system="Sort {{ a }}.").messages({"a": "x"})
        assert messages == [{"role": "system", "content": "Sort {{ a }}."}, {"role": "user", "content": "x"}]

    def test_without_system_there_is_one_message(self):
        assert template("{{ a }}").messages({"a": "x"}) == [{"role": "user", "content": "x"}]

    def test_values_are_never_rendered_again(self):
        evil = "{{ 7 * 7 }} {% for i in range(9) %}x{% endfor %} {# gone #}"
        assert rendered("{{ a }}", a=evil) == evil
        assert rendered(by_jinja("{{ a }}"), a=evil) == evil

    def test_json_braces_in_the_template_are_harmless(self):
        assert rendered('Answer like {"a": 1, "b": {"c": []}} about {{ a }}', a="x") == (
            'Answer like {"a": 1, "b": {"c": []}} about x'
        )

    def test_special_tokens_and_html_go_out_verbatim(self):
        assert rendered("{{ a }}", a="<|endoftext|> <b> & 'q'") == "<|endoftext|> <b> & 'q'"

    def test_trailing_newline_of_the_template_stays(self):
        assert rendered("{{ a }}\n", a="x") == "x\n"

    def test_line_ends_of_values_stay(self):
        assert rendered("{{ a }}", a="one\r\ntwo\rthree") == "one\r\ntwo\rthree"

    def test_lists_and_objects_print_as_json(self):
        assert rendered("{{ a }}|{{ b }}", a=["é", None, 1.5], b={"k": "v"}) == '["é",null,1.5]|{"k":"v"}'

    def test_conditionals_loops_and_filters_work(self):
        prompt = "{% for t in tags if t %}{{ loop.index }}:{{ t | upper }} {% endfor %}{{ tags | length }}"
        assert rendered(prompt, tags=["a", "", "b"]) == "1:A 2:B 3"

    def test_nested_values_are_reached(self):
        assert rendered("{{ a.b.c }}{{ a['x y'] }}", a={"b": {"c": 1}, "x y": 2}) == "12"

    @pytest.mark.parametrize("missing", [None, float("nan")])
    def test_D6_null_and_nan_print_as_nothing_through_filters_too(self, missing):
        prompt = "[{{ a }}{{ a | upper }}{{ a | trim | truncate(3) }}{{ a ~ a }}{{ [a] | join }}{% if a %}x{% endif %}]"
        assert rendered(prompt, a=missing) == "[]"

    def test_filters_and_joins_see_what_would_be_printed(self):
        assert rendered("{{ a | upper }} {{ a ~ b }} {{ a | join(',') }}", a=["x", None], b=True) == (
            '["X",NULL] ["x",null]true x,'
        )

    def test_tojson_quotes_text_and_does_not_escape_for_html(self):
        assert (
            rendered("{{ a | tojson }} {{ b | tojson }}", a='say "é" <b>', b=None) == '"say \\"é\\" <b>" null'
        )

    def test_D4_lone_surrogates_become_the_replacement_character(self):
        assert rendered("{{ a }}", a="ok \ud83d end") == "ok \ufffd end"
        assert rendered("{{ a }}", a=["ok \ud83d end"]) == '["ok \ufffd end"]'
        assert template("x", system="\udc00").messages({})[0]["content"] == "\ufffd"

    @given(st.text(alphabet=st.characters(exclude_categories=[])))
    def test_D4_messages_can_always_be_encoded(self, text):
        content = rendered("{{ a }}", a=text)
        assert content.encode().decode() == content
        assert len(content) == len(text)

    @given(
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers()
            | st.floats()
            | st.text()
            | st.datetimes()
            | st.decimals(),
            lambda leaf: st.lists(leaf, max_size=3) | st.dictionaries(st.text(max_size=4), leaf, max_size=3),
            max_leaves=8,
        )
    )
    def test_the_short_cut_prints_what_jinja_prints(self, value):
        assert rendered("a {{ a }} b", a=value) == rendered(by_jinja("a {{ a }} b"), a=value)

    def test_rendering_twice_gives_the_same(self):
        one = template("{{ a }}{{ b | upper }}")
        row = {"a": {"z": 1, "a": [dt.date(2024, 1, 2)]}, "b": "x"}
        assert one.messages(row) == one.messages(row) == template("{{ a }}{{ b | upper }}").messages(row)


class TestColumns:
    def test_they_are_found_in_every_corner(self):
        prompt = (
            "{{ a }}{% if b.c %}{% endif %}{% for x in d %}{{ x }}{{ e }}{% endfor %}{{ f | replace(g, h) }}"
            "{% set i = j %}{{ i }}{% macro k(l) %}{{ l }}{{ m }}{% endmacro %}{{ k(n) }}{{ row['o p'] }}{{ row.q }}"
        )
        assert template(prompt).columns == frozenset({*"abdefghjmnq", "o p"})

    def test_names_that_are_no_identifiers_are_reached_through_row(self):
        assert (
            rendered("{{ row['First name'] }} {{ row['select'] }}", **{"First name": "Ada", "select": 1})
            == "Ada 1"
        )

    def test_row_reaches_columns_only_never_methods(self):
        assert rendered("{{ row.items }}{{ row.keys | upper }}", items="i", keys="k") == "iK"
        assert template("{{ row.get('a') }}").columns == frozenset({"get"})

    def test_a_loop_variable_does_not_hide_the_column_behind_row(self):
        assert rendered("{% for a in b %}{{ row.a }}{{ a }}{% endfor %}", a="A", b=[1, 2]) == "A1A2"

    def test_made_up_names_never_meet_columns(self):
        assert rendered("{{ row_0 }}{{ row['x y'] }}", row_0="a", **{"x y": "b"}) == "ab"

    def test_columns_named_like_jinja_functions(self):
        assert rendered("{{ range }}{{ dict }}", range=1, dict=2) == "12"
        assert rendered("{{ range(2) | join }}{{ row.range }}", range="r") == "01r"
        with pytest.raises(LLMInputError, match=r'as a function and as a column: write row\["range"\]'):
            template("{{ range(2) }}{{ range }}")

    @pytest.mark.parametrize(
        "prompt", ["{{ row }}", "{{ row[a] }}", "{{ row | tojson }}", "{% set row = 1 %}{{ a }}"]
    )
    def test_row_itself_is_reserved(self, prompt):
        with pytest.raises(LLMInputError, match='"row" is reserved'):
            template(prompt)


class TestCheck:
    def test_names_unknown_columns_those_there_are_and_the_likely_one(self):
        with pytest.raises(LLMInputError, match="unknown columns: 'subjct'") as caught:
            template("{{ subjct }} {{ body }}").check(["subject", "body"])
        assert "The source has: 'subject', 'body'" in str(caught.value)
        assert "did you mean 'subject' for 'subjct'" in str(caught.value)

    def test_suggests_the_spelling_that_works(self):
        with pytest.raises(LLMInputError, match=r'did you mean row\["First name"\]'):
            template("{{ First_name }}").check(["First name"])

    @pytest.mark.parametrize(
        "prompt", ["{{ now }}", "{{ now() }}", "{{ ds }}", "{{ run_id }}", "{{ macros.ds_add(1) }}"]
    )
    def test_B5_run_scoped_values_are_refused_with_the_remedy(self, prompt):
        with pytest.raises(LLMInputError, match="value of the run, not of the row.*put it into a column"):
            template(prompt).check(["body"])

    def test_B5_nothing_random_or_of_the_moment_is_within_reach(self):
        with pytest.raises(LLMInputError, match="unknown columns: 'lipsum'"):
            template("{{ lipsum() }}").check(["body"])
        with pytest.raises(LLMInputError, match="unknown Jinja filter 'random'"):
            template("{{ body | random }}")

    def test_many_columns_are_cut(self):
        with pytest.raises(LLMInputError, match="'c29' and 70 more"):
            template("{{ nope }}").check([f"c{n}" for n in range(100)])

    def test_bytes_columns_are_refused(self):
        with pytest.raises(LLMInputError, match="'blob', which holds bytes"):
            template("{{ blob }}").check(["blob", "b"], binary=["blob", "b"])

    def test_known_columns_pass(self):
        template("{{ a }}{{ row['b c'] }}").check(["a", "b c", "unused"])


class TestConstruction:
    @pytest.mark.parametrize(
        ("prompt", "message"),
        [
            ("{{ a", "no Jinja template.*line 1"),
            ("\n\n{% if a %}", "no Jinja template.*line 3"),
            ("{{ a | nonsense }}", "unknown Jinja filter 'nonsense'"),
            ("{{ a is nonsense }}", "unknown Jinja test 'nonsense'"),
            ("{% include 'other' %}", "one template alone"),
            ("{% import 'other' as o %}", "one template alone"),
            ("{% extends 'other' %}", "one template alone"),
            ("{{ a.__class__ }}", "'__class__'.*sandbox refuses"),
            ("{% block a %}{% endblock %}{% block a %}{% endblock %}", "no Jinja template"),
            ("{% break %}", "no Jinja template"),
            ("{{ " + "(" * 300 + "a" + ")" * 300 + " }}", "nested too deeply"),
        ],
    )
    def test_what_fails_in_every_row_fails_before_any(self, prompt, message):
        with pytest.raises(LLMInputError, match=message):
            template(prompt)


class TestRowErrors:
    @pytest.mark.parametrize(
        "prompt",
        [
            "{{ a['__class__']['__mro__'] }}",
            "{{ a | attr('__class__') }}",
            "{{ b.append(1) }}",
            "{{ '{0.__class__}'.format(a) }}",
        ],
    )
    def test_the_sandbox_holds(self, prompt):
        with pytest.raises(RowRenderError):
            rendered(prompt, a="x", b=[])

    def test_E12_kind_and_line_are_named_but_no_value(self):
        with pytest.raises(RowRenderError) as caught:
            rendered("\n\n{{ a[b] }}{{ a.secret }}", a={}, b="patient 4711")
        assert str(caught.value) == "UndefinedError in line 3 of the prompt"
        assert caught.value.__cause__ is None

    def test_E12_bytes_name_the_column(self):
        with pytest.raises(RowRenderError, match="column 'blob': holds bytes") as caught:
            rendered("{{ blob }}", blob=b"\x00secret")
        assert caught.value.column == "blob"
        assert "secret" not in str(caught.value)

    def test_a_row_without_the_column(self):
        with pytest.raises(RowRenderError, match="lacks a column"):
            rendered("{{ a }}", b=1)
        with pytest.raises(RowRenderError, match="lacks a column"):
            rendered(by_jinja("{{ a }}"), b=1)

    def test_deep_nesting_is_a_row_error(self):
        deep: list = []
        for _ in range(5000):
            deep = [deep]
        with pytest.raises(RowRenderError):
            rendered("{{ a }}", a=deep)


class TestIsEmpty:
    @pytest.mark.parametrize("blank", [None, float("nan"), "", "  \n\t\u3000", [], {}])
    def test_D6_blank_columns_are_empty_input(self, blank):
        assert template("Text: {{ a }}{{ b }}").is_empty({"a": blank, "b": None})

    @pytest.mark.parametrize("value", [0, False, "x", [None], 0.0, dt.date(2024, 1, 1), "nan"])
    def test_any_value_is_not(self, value):
        assert not template("{{ a }}{{ b }}").is_empty({"a": value, "b": None})

    def test_unused_columns_do_not_count(self):
        assert template("{{ a }}").is_empty({"a": None, "b": "text"})

    def test_a_prompt_without_columns_is_never_empty(self):
        assert not template("Tell a joke").is_empty({"a": None})


class TestFixedText:
    @pytest.mark.parametrize(
        ("prompt", "behind"),
        [
            ("Label: {{ a }}", ""),
            ("{{ a }} Label it.", " Label it."),
            ("Label {{ a }} and {{ b }}!", " and !"),
            ("Label {% if a %}x{{ a }}{% endif %}y", "xy"),
            ("{{ a | upper }}", ""),
            ("no column", ""),
        ],
    )
    def test_behind_the_first_column_is_what_no_cache_finds(self, prompt, behind):
        assert PromptTemplate(CompletionSpec(model="m", prompt=prompt)).fixed_text_behind == behind
