"""What repeats in a template is counted: the rounds of loops, the calls of macros, and what these print."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jinja2 import StrictUndefined, nodes, pass_context
from jinja2.visitor import NodeTransformer

from airflow_llm_provider.prompt.bounds import MOST_MADE, bounded_text
from airflow_llm_provider.prompt.text import RowRenderError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from jinja2.runtime import Context

#: What a round of a loop counts as, in characters, and what a call of a macro, or a round of a recursive loop: so many as
#: are allowed take a second or two.
_ROUND, _CALL = 10, 100
#: Names that no template can write: of the meter in the context of a rendering, and of the filters that count.
_METER, _COUNTED_ROUND, _COUNTED_ROUNDS, _COUNTED_TEXT = "the meter", "a round", "rounds of", "text of"


class _Meter:
    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = MOST_MADE

    def take(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise RowRenderError(
                f"loops, macros and blocks would make more than {MOST_MADE:,} characters, where each round of a loop counts as "
                f"{_ROUND}, of a recursive one and each call of a macro as {_CALL}: loop over less, or put the text into a "
                "column of the source"
            )


def printed(value: Any) -> Any:
    """Return what a ``{{ }}`` prints; undefined values are left to raise by themselves."""
    if type(value) is str or isinstance(value, StrictUndefined):
        return value
    return bounded_text(value)


def metered(tree: nodes.Template) -> nodes.Template:
    """Have counted what repeats."""
    counted: nodes.Template = _Metering().visit(tree)
    return counted


class _Metering(NodeTransformer):
    def __init__(self) -> None:
        self._repeats = False

    def visit_Output(self, node: nodes.Output) -> nodes.Node:  # noqa: N802
        if self._repeats:
            node.nodes = [
                part if isinstance(part, nodes.TemplateData) else _filter(part, _COUNTED_TEXT)
                for part in node.nodes
            ]
        return node

    def visit_FilterBlock(self, node: nodes.FilterBlock) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if self._repeats:
            node.filter = _filter(node.filter, _COUNTED_TEXT)
        return node

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.Node:  # noqa: N802
        # It repeats nothing by itself, but the next one may print it twice.
        self._visit_body(node)
        return node

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        if node.recursive:
            return self._count_each(node)
        fixed = self._visit_body(node)
        node.iter = _filter(node.iter, _COUNTED_ROUNDS, fixed)
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802
        return self._count_each(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:  # noqa: N802
        return self._count_each(node)

    def visit_Block(self, node: nodes.Block) -> nodes.Node:  # noqa: N802
        return self._count_each(node)

    def _count_each(self, node: nodes.Macro | nodes.CallBlock | nodes.Block | nodes.For) -> nodes.Node:
        fixed = nodes.Const(self._visit_body(node), lineno=node.lineno)
        node.body.insert(0, nodes.ExprStmt(_filter(fixed, _COUNTED_ROUND), lineno=node.lineno))
        return node

    def _visit_body(self, node: nodes.Node) -> int:
        """Return the constant characters of what repeats."""
        outside, self._repeats = self._repeats, True
        self.generic_visit(node)
        self._repeats = outside
        return sum(len(text.data) for text in node.find_all(nodes.TemplateData))


def _filter(node: nodes.Node, name: str, *args: int) -> nodes.Filter:
    given = [nodes.Const(each) for each in args]
    return nodes.Filter(node, name, given, [], None, None, lineno=node.lineno)


def _meter(context: Context) -> _Meter:
    meter: _Meter | None = context.parent.get(_METER)
    if meter is None:
        meter = context.parent[_METER] = _Meter()
    return meter


@pass_context
def _count_text(context: Context, value: Any) -> Any:
    text = value if type(value) is str else printed(value)
    _meter(context).take(len(text))
    return text


@pass_context
def _count_round(context: Context, fixed: int) -> None:
    """Count one round or one call before what it prints."""
    _meter(context).take(_CALL + fixed)


@pass_context
def _count_rounds(context: Context, items: Iterable[Any], fixed: int) -> Iterator[Any]:
    """Count each round of a loop before what it prints: a loop that is left early has no more."""
    meter = _meter(context)
    for item in items:
        meter.take(_ROUND + fixed)
        yield item


#: Filters of the environment that renders what :func:`metered` returns.
COUNTING_FILTERS = {_COUNTED_ROUND: _count_round, _COUNTED_ROUNDS: _count_rounds, _COUNTED_TEXT: _count_text}
