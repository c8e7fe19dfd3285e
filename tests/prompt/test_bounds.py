"""A template that would make far more than it is given ends in an error, at once and in little memory."""

import datetime as dt
from decimal import Decimal

import pytest

from airflow_llm_provider.prompt import PromptTemplate, RowRenderError
from airflow_llm_provider.spec import CompletionSpec

HUGE = 10**12


def rendered(prompt, **row):
    return PromptTemplate(CompletionSpec(model="m", prompt=prompt)).text(row)


def doubled(step, printed="ns.x", first="text", times=60):
    return (
        f"{{% set ns = namespace(x={first}) %}}{{% for _ in range({times}) %}}{{% set ns.x = {step} %}}{{% endfor %}}"
        f"{{{{ {printed} }}}}"
    )


@pytest.mark.parametrize(
    "prompt",
    [
        "{{ 9 ** (9 ** 9) }}",
        "{{ n ** n }}",
        "{{ 1 | round(-n) }}",
        "{{ 1 | round(n, 'ceil') }}",
        doubled("(ns.x | length + 9) ** 9999"),
        "{% set ns = namespace(x=99) %}{% for _ in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}{{ ns.x }}",
    ],
)
def test_numbers_that_nobody_prints_are_refused(prompt):
    with pytest.raises(RowRenderError, match=r"would make .*line 1 of the prompt"):
        rendered(prompt, n=HUGE, text="a")


@pytest.mark.parametrize(
    "prompt",
    [
        "{{ text * 10 ** 12 }}",
        "{{ n * text }}",
        "{{ [text] * n }}",
        "{{ [[[text] * 1000] * 1000] * 1000 }}",
        "{{ 'x'.ljust(10 ** 12) }}",
        "{{ text.rjust(n) }}",
        "{{ text['center'](n) }}",
        "{{ (text | attr('zfill'))(n) }}",
        "{{ '\t'.expandtabs(n) }}",
        "{{ '\t'.expandtabs(tabsize=n) }}",
        "{{ (1).to_bytes(n) }}",
        "{{ text.encode().ljust(n) }}",
        "{{ long.replace('', long) }}",
        "{{ long.join(long) }}",
        "{{ long.join(long | map('upper')) }}",
        "{{ long.translate({97: long}) }}",
        "{{ '%1000000000s' % 1 }}",
        "{{ '%*d' % (n, 1) }}",
        "{{ '%.*f' % (n, 1.5) }}",
        "{{ ('%(a)s' * 10000) % {'a': long} }}",
        "{{ b % (n, 1) }}",
        "{{ '{:>999999999}'.format(1) }}",
        "{{ '{:{w}}'.format(1, w=n) }}",
        "{{ '{:{}}'.format(1, n) }}",
        "{{ '{:{}}'.format(1, n | string) }}",
        "{{ '{:{}}'.format(1.5, n | float) }}",
        "{{ '{:{}}{:{}}'.format(1, 2, 3, n | string) }}",
        "{{ '{0:{1[0]}}'.format(1, [n]) }}",
        "{{ '{:{w[of]}}'.format(1, w={'of': n}) }}",
        "{{ '{a:{w}}'.format_map({'a': 1, 'w': n | string}) }}",
        "{{ '%(a(b))0999999999d' % {'a(b)': 1} }}",
        "{{ lines | list | join(long * 100) }}",
        "{{ '{a:>999999999}'.format_map({'a': 1}) }}",
        "{{ ('{0}' * 10000).format(long) }}",
        "{{ 'x' | center(1000000000) }}",
        "{{ text | center(width=n) }}",
        "{{ [text] | map('center', n) | join }}",
        "{{ '%1000000000s' | format(1) }}",
        "{{ long | indent(n) }}",
        "{{ lines | indent(long) }}",
        "{{ long | replace('', long) }}",
        "{{ long | replace('', long, count=9999) }}",
        "{{ long | join(long) }}",
        "{{ long | wordwrap(1, wrapstring=long) }}",
        "{{ long | wordwrap(1, true, long) }}",
        "{{ [1] | batch(n, 0) | list }}",
        "{{ [] | slice(n) | list }}",
        "{{ [1] | slice(200000) | list }}",
        doubled("ns.x + ns.x"),
        doubled("ns.x ~ ns.x"),
        doubled("ns.x * 2"),
        doubled("[ns.x, ns.x]"),
        doubled("{'a': ns.x, 'b': ns.x}"),
        doubled("[ns.x, ns.x]", "ns.x | length ~ ns.x"),
        doubled("[ns.x, ns.x]", "ns.x | tojson"),
        doubled("[ns.x, ns.x]", "ns.x | join"),
        doubled("[ns.x, ns.x]", "ns.x * 2"),
        doubled("[ns.x, ns.x]", "'%s' % [ns.x]"),
        doubled("[ns.x, ns.x]", "'{}'.format(ns.x)"),
        doubled("[[ns.x, 1], [ns.x, 1]] | sum(start=[])"),
        doubled("[ns.x, ns.x] | map('list') | sum(start=[])", "ns.x | length"),
        doubled("[{'a': ns.x}, {'a': ns.x}] | sum('a', [])", "ns.x | length", "[1]"),
        "{{ range(100000) | map('center', 100000) | list | length }}",
        "{% set x = [long] * 900 %}{{ range(100000) | map('replace', 1, x) | join }}",
        doubled("ns.x + ns.x", "ns.x | join", "[[long] * 900]", times=20),
        "{{ [[9 ** 4000] * 2000] * 2 }}",
        doubled("[{9 ** 4000: ns.x}, {9 ** 4000: ns.x}]", times=14),
        doubled("[ns.x, ns.x]", "text | replace('a', ns.x)"),
        doubled("[ns.x, ns.x]", "'%*d' % (ns.x, 1)"),
    ],
)
def test_texts_and_lists_that_no_model_takes_are_refused(prompt):
    with pytest.raises(
        RowRenderError,
        match=r"^\S+ would make more than 10,000,000 characters or items: .*line 1 of the prompt",
    ):
        rendered(prompt, n=HUGE, text="a", long="a" * 10_000, lines="a\n" * 10_000, b=b"%*d")


@pytest.mark.parametrize(
    "printed",
    [
        "'%s' % [{'a': ns.x}.items()]",
        "'%s' % {'a': ns.x}.values()",
        "'{}'.format(ns)",
        "'%s' % [ns]",
        "text | replace('a', [{'a': ns.x}.items()])",
    ],
)
def test_what_only_python_prints_is_refused_unseen(printed):
    with pytest.raises(RowRenderError, match=r"^holds a \S+, which has no text of its own"):
        rendered(doubled("[ns.x, ns.x]", printed), text="a")


@pytest.mark.parametrize(
    "prompt",
    [
        "{% for a in r %}{% for b in r %}{% for c in r %}{% endfor %}{% endfor %}{% endfor %}",
        "{% for a in r %}{% for b in r | select %}{% if a > n %}x{% endif %}{% endfor %}{% endfor %}",
        "{% for a in r %}{{ long }}{% endfor %}",
        "{% for a in r %}" + "a constant text " * 10 + "{% endfor %}",
        "{% set x %}{% for a in r %}{{ long }}{% endfor %}{% endset %}",
        "{% set a %}{{ long }}{% endset %}" + "{% set a %}{{ a }}{{ a }}{% endset %}" * 40,
        "{% for a in [r] recursive %}{% if loop.depth < 9 %}{{ loop(r) }}{% endif %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% macro f() %}{{ long }}{% endmacro %}{% for a in r %}{% set x = f() %}{% endfor %}",
        "{% macro f() %}{% for a in r %}{{ caller() }}{% endfor %}{% endmacro %}{% call f() %}{{ long }}{% endcall %}",
        "{% for a in r %}{% filter center(10000) %}x{% endfilter %}{% endfor %}",
        "{% for a in r %}{% block one scoped %}{{ long }}{% endblock %}{% endfor %}",
    ],
)
def test_loops_and_macros_without_end_are_refused(prompt):
    with pytest.raises(
        RowRenderError,
        match="loops, macros and blocks would make more than 10,000,000 characters.*line 1 of the prompt",
    ):
        rendered(prompt, r=list(range(100_000)), long="a" * 10_000, n=HUGE)


def test_huge_ranges_are_refused():
    for prompt in ("{% for i in range(n) %}x{% endfor %}", "{{ range(n, -n, -3) | list }}"):
        with pytest.raises(RowRenderError, match=r"range\(\) would have more than 100,000 numbers"):
            rendered(prompt, n=HUGE**3)


def test_no_error_says_a_number_of_the_row():
    with pytest.raises(RowRenderError) as caught:
        rendered("{{ '-' * account }}", account=4711_0815_4711)
    assert "4711" not in str(caught.value).replace(",", "")


def test_each_row_has_the_whole_bound():
    template = PromptTemplate(
        CompletionSpec(model="m", prompt="{% for i in range(9000) %}{{ text }}{% endfor %}")
    )
    for _ in range(3):
        assert len(template.text({"text": "a" * 1000})) == 9_000_000


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ("{{ 2 ** 10 }} {{ 0 ** n }} {{ 1 ** n }} {{ 2 ** -1 }} {{ 2.0 ** 3 }}", "1024 0 1 0.5 8.0"),
        ("{{ 6 * 7 }} {{ 1 + 2 }} {{ 7 % 4 }} {{ 'ab' * 2 }} {{ 2 * [1] }}", "42 3 3 abab [1,1]"),
        ("{{ 'ab' + 'c' }} {{ [1] + [2] }} {{ d - e }} {{ price * 2 }}", "abc [1,2] P1DT0H0M0S 2.50"),
        ("{{ '%5.1f|%-4s|%%|%(x)s' % {'x': 1} if false else '%05d' % 42 }}", "00042"),
        ("{{ '%s of %s' % (n, 'b') }} {{ '%.2f' | format(1.005) }}", f"{HUGE} of b 1.00"),
        ("{{ '{:,}'.format(n) }} {{ '{0:>{1}}'.format('a', 3) }}", "1,000,000,000,000   a"),
        ("{{ '{:>{}} {}'.format('a', 3, n) }} {{ '%*d%% %s' % (3, 1, n) }}", f"  a {HUGE}   1% {HUGE}"),
        ("{% for x in [1] %}{% filter upper %}a{{ x }}{% endfilter %}{% endfor %}", "A1"),
        ("{{ 'a'.ljust(3) }}|{{ 'a,b'.replace(',', ';') }}|{{ '-'.join(['a', 'b']) }}", "a  |a;b|a-b"),
        ("{{ 'a b' | wordwrap(1) }}|{{ 'x' | center(3) }}|{{ 'a\nb' | indent(2) }}", "a\nb| x |a\n  b"),
        ("{{ 1.26 | round(method='floor') }} {{ 'aaa' | replace('a', 'b', count=1) }}", "1.0 baa"),
        ("{{ [1, 2, 3] | batch(2, 0) | list }} {{ 1.26 | round(1) }}", "[[1,2],[3,0]] 1.3"),
        ("{{ d.replace(year=2030) }} {{ 'ab'.translate({97: 'x'}) }}", "2030-01-02 xb"),
        ("{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{{ loop.length }}{% endfor %}", "a11"),
        ("{% for x in [1, 2] | map('string') %}{{ loop.last }}{{ x }}{% endfor %}", "false1true2"),
        ("{% for x in [[[], []], []] recursive %}<{{ loop(x) }}>{% endfor %}", "<<><>><>"),
        ("{% set a %}{{ n }}.{% endset %}{% set b %}{{ a }}{{ a }}{% endset %}{{ b }}", f"{HUGE}.{HUGE}."),
        ("{% macro f(x) %}[{{ x }}{{ caller() }}]{% endmacro %}{% call f(1) %}c{% endcall %}", "[1c]"),
        (
            "{% for i in range(100000) %}{% if i == 2 %}{% break %}{% endif %}"
            + "long " * 999
            + "{% endfor %}",
            "long " * 1998,
        ),
        ("{% for i in [1, 2, 3] %}{{ loop.length }}{{ loop.revindex }}{% else %}none{% endfor %}", "333231"),
        ("{% for i in [] %}some{% else %}none{% endfor %}", "none"),
        (
            "{{ [[1, 2], [3]] | sum(start=[]) }} {{ [1, 2.5] | sum }} {{ [{'a': 2}] | sum('a') }}",
            "[1,2,3] 3.5 2",
        ),
        ("{% for i in range(1000) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "012"),
    ],
)
def test_what_prompts_compute_is_as_ever(prompt, text):
    row = {"n": HUGE, "d": dt.date(2026, 1, 2), "e": dt.date(2026, 1, 1), "price": Decimal("1.25")}
    assert rendered(prompt, **row) == text
