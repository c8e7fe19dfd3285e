"""Jinja as prompts use it: sandboxed, bounded, strict, deterministic, one template alone, columns found before any row."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from types import BuiltinMethodType, MethodType
from typing import TYPE_CHECKING, Any

from jinja2 import (
    StrictUndefined,
    Template,
    TemplateError,
    TemplateSyntaxError,
    meta,
    nodes,
    pass_environment,
)
from jinja2.filters import make_attrgetter
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from airflow_llm_provider.errors import LLMInputError
from airflow_llm_provider.prompt.bounds import (
    FILTER_SIZES,
    METHOD_SIZES,
    bounded_range,
    bounded_text,
    check_operation,
    check_size,
)
from airflow_llm_provider.prompt.metering import COUNTING_FILTERS, metered, printed
from airflow_llm_provider.prompt.text import is_missing

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from jinja2.runtime import Context

#: Template name -> column: ``subject`` for ``{{ subject }}``, a made-up one for ``{{ row["First name"] }}``.
RowBindings = dict[str, str]

#: Filters that take text: a null must be nothing to them, not "None", and a list its JSON.
_TEXT_FILTERS = (
    *("capitalize", "center", "e", "escape", "forceescape", "format", "indent", "lower", "replace", "string"),
    *("striptags", "title", "trim", "truncate", "upper", "urlencode", "urlize", "wordcount", "wordwrap"),
)
#: Left out because they differ from call to call, or make HTML.
_UNFIT_FILTERS = ("random", "safe", "xmlattr", "pprint")
_ROW = "row"
_OTHER_TEMPLATES = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)


class PromptEnvironment(ImmutableSandboxedEnvironment):
    """What templates are compiled by: whatever could make far more than it is given is checked before."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute, within bounds."""
        check_operation(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Callable[..., Any] | None:
        """Return what stands for a method that could make too much, or, as Jinja does, for a text's ``format``."""
        if not isinstance(value, (BuiltinMethodType, MethodType)):
            return None
        size, own = METHOD_SIZES.get(value.__name__), value.__self__
        if size is None or not isinstance(own, (str, bytes, int)):
            return None
        method = super().wrap_str_format(value) or value

        def bounded(*args: Any, **kwargs: Any) -> Any:
            args = tuple(list(given) if isinstance(given, Iterator) else given for given in args)
            check_size(f"{value.__name__}()", size(own, *args, **kwargs))
            return method(*args, **kwargs)

        return bounded


def prompt_environment() -> PromptEnvironment:
    """Return the environment of every prompt."""
    return _environment()


@functools.cache
def _environment() -> PromptEnvironment:
    environment = PromptEnvironment(
        undefined=StrictUndefined,
        autoescape=False,
        keep_trailing_newline=True,
        finalize=printed,
        extensions=["jinja2.ext.loopcontrols"],
    )
    environment.globals["range"] = bounded_range
    del environment.globals["lipsum"]  # random text
    for name in _UNFIT_FILTERS:
        del environment.filters[name]
    for name in {*_TEXT_FILTERS, *FILTER_SIZES}:
        environment.filters[name] = _fitted(name, environment.filters[name])
    environment.filters["join"] = _join
    environment.filters["map"] = _mapped(environment.filters["map"])
    environment.filters["sum"] = _sum
    environment.filters["tojson"] = _to_json
    environment.filters.update(COUNTING_FILTERS)
    return environment


def _fitted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a filter so that it meets the text that would be printed, and makes no more than it may."""
    at = 1 if hasattr(function, "jinja_pass_arg") else 0
    on_text, size = name in _TEXT_FILTERS, FILTER_SIZES.get(name)

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        value = printed(args[at]) if on_text else args[at]
        if size is not None:
            check_size(name, size(value, *args[at + 1 :], **kwargs))
        return function(*args[:at], value, *args[at + 1 :], **kwargs)

    return wrapped


def _mapped(function: Callable[..., Iterable[Any]]) -> Callable[..., Iterator[Any]]:
    """Wrap ``map`` so that it makes no more than it may, whatever makes each item."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Iterator[Any]:
        made = 0
        for item in function(*args, **kwargs):
            made += len(item) if isinstance(item, str) else 0
            check_size("map", made)
            yield item

    return wrapped


def _join(value: Any, d: str = "", attribute: str | int | None = None) -> str:
    """Join a list's items as they would print; a null list is an empty one."""
    items = () if is_missing(value) else value
    if attribute is not None:
        items = [_environment().getitem(item, attribute) for item in items]
    texts: list[str] = []
    made = 0
    for item in items:
        texts.append(bounded_text(item))
        made += len(texts[-1]) + len(d)
        check_size("join", made)
    return d.join(texts)


@pass_environment
def _sum(
    environment: PromptEnvironment,
    iterable: Iterable[Any],
    attribute: str | int | None = None,
    start: Any = 0,
) -> Any:
    """Add up; lists too, each time into a new one, as Python does."""
    items = list(iterable if attribute is None else map(make_attrgetter(environment, attribute), iterable))
    if isinstance(start, (list, tuple)):
        check_size("sum", sum(itertools.accumulate(map(len, items), initial=len(start))))
    return sum(items, start)


@pass_environment
def _to_json(_: Any, value: Any) -> str:
    """Write any value as JSON: text quoted, null as ``null``. Not escaped for HTML, unlike Jinja's own."""
    if is_missing(value):
        return "null"
    # A list of one prints every type as JSON has it.
    return bounded_text([value])[1:-1]


def parse(environment: PromptEnvironment, source: str) -> tuple[nodes.Template, RowBindings]:
    """Parse a prompt and find the columns it uses.

    :raises LLMInputError: when it does not parse, or asks for what a prompt must not have.
    """
    # Jinja counts names of its functions as declared; columns of such names are none.
    bare = environment.overlay()
    bare.globals = {}
    try:
        tree = bare.parse(source)
        _refuse(environment, tree)
        meta.find_undeclared_variables(tree)  # finds faults of sense, such as a block defined twice
    except TemplateSyntaxError as error:
        raise LLMInputError(
            f"the prompt is no Jinja template: {error.message} (line {error.lineno}); "
            "put {% raw %}…{% endraw %} around braces meant literally"
        ) from error
    except RecursionError:
        raise LLMInputError("the prompt is nested too deeply: use fewer brackets and blocks") from None
    access = _RowAccess(taken={node.name for node in tree.find_all(nodes.Name)})
    tree = access.visit(tree)
    if any(node.name == _ROW for node in tree.find_all(nodes.Name)):
        raise LLMInputError(
            'in a prompt, "row" is reserved for row["column name"], with the name written out: '
            "list the columns that matter, so that a change in the others asks nothing anew"
        )
    undeclared = meta.find_undeclared_variables(tree) - access.bindings.keys()
    columns = sorted(undeclared - _functions(environment, tree))
    return metered(tree), {**{name: name for name in columns}, **access.bindings}


def compiled(environment: PromptEnvironment, tree: nodes.Template) -> Template:
    """Compile a parsed prompt.

    :raises LLMInputError: when Jinja's code for it does not compile, as with a ``break`` outside a loop.
    """
    try:
        return environment.from_string(tree)
    except (TemplateError, SyntaxError) as error:
        raise LLMInputError(f"the prompt is no Jinja template: {error}") from error


def _functions(environment: PromptEnvironment, tree: nodes.Template) -> set[str]:
    """Find Jinja's own functions in use: ``range(3)`` is one, ``{{ range }}`` a column of that name."""
    called = {node.node.name for node in tree.find_all(nodes.Call) if isinstance(node.node, nodes.Name)}
    functions = called & environment.globals.keys()
    for name in functions:
        uses = sum(node.name == name for node in tree.find_all(nodes.Name))
        calls = sum(
            isinstance(node.node, nodes.Name) and node.node.name == name for node in tree.find_all(nodes.Call)
        )
        if uses > calls:
            raise LLMInputError(
                f'the prompt uses {name!r} as a function and as a column: write row["{name}"] for it'
            )
    return functions


class _RowAccess(NodeTransformer):
    """Replaces ``row["a b"]`` and ``row.a`` by a made-up name, so that nothing but columns is reached through it.

    Also lets ``~`` join what would be printed, where Jinja would join Python's own text of the values.
    """

    def __init__(self, *, taken: set[str]) -> None:
        self.bindings: RowBindings = {}
        self._taken = taken

    def visit_Getitem(self, node: nodes.Getitem, *args: Any, **kwargs: Any) -> nodes.Node:  # noqa: N802
        if _is_row(node.node) and isinstance(node.arg, nodes.Const) and isinstance(node.arg.value, str):
            return self._bind(node.arg.value, node)
        return self.generic_visit(node, *args, **kwargs)

    def visit_Getattr(self, node: nodes.Getattr, *args: Any, **kwargs: Any) -> nodes.Node:  # noqa: N802
        if _is_row(node.node):
            return self._bind(node.attr, node)
        return self.generic_visit(node, *args, **kwargs)

    def visit_Concat(self, node: nodes.Concat, *args: Any, **kwargs: Any) -> nodes.Node:  # noqa: N802
        self.generic_visit(node, *args, **kwargs)
        node.nodes = [
            nodes.Filter(part, "string", [], [], None, None, lineno=node.lineno) for part in node.nodes
        ]
        return node

    def _bind(self, column: str, node: nodes.Node) -> nodes.Node:
        name = next((name for name, bound in self.bindings.items() if bound == column), None)
        if name is None:
            name = next(n for i in itertools.count() if (n := f"row_{i}") not in self._taken)
            self._taken.add(name)
            self.bindings[name] = column
        return nodes.Name(name, "load", lineno=node.lineno)


def _is_row(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Name) and node.name == _ROW and node.ctx == "load"


def _refuse(environment: PromptEnvironment, tree: nodes.Template) -> None:
    """Find before any row what would fail in every row."""
    for other in tree.find_all(_OTHER_TEMPLATES):
        raise LLMInputError(
            f"the prompt uses {type(other).__name__.lower()} (line {other.lineno}): a prompt is one template alone"
        )
    for access in tree.find_all(nodes.Getattr):
        if access.attr.startswith("__"):
            raise LLMInputError(
                f"the prompt uses {access.attr!r} (line {access.lineno}), which the sandbox refuses"
            )
    _refuse_unknown(
        "filter", ((node.name, node.lineno) for node in tree.find_all(nodes.Filter)), environment.filters
    )
    _refuse_unknown(
        "test", ((node.name, node.lineno) for node in tree.find_all(nodes.Test)), environment.tests
    )


def _refuse_unknown(what: str, used: Iterable[tuple[str, int]], known: Collection[str]) -> None:
    for name, line in used:
        if name not in known:
            raise LLMInputError(
                f"the prompt uses the unknown Jinja {what} {name!r} (line {line}); "
                f"there are: {', '.join(sorted(each for each in known if each.isidentifier()))}"
            )
