"""The prompt's template: sandboxed Jinja over the columns of one row."""

from __future__ import annotations

import difflib
import functools
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jinja2 import Template, nodes

from airflow_llm_provider.errors import LLMInputError
from airflow_llm_provider.prompt.sandbox import RowBindings, compiled, parse, prompt_environment
from airflow_llm_provider.prompt.text import RowRenderError, clean_text, is_blank, is_missing, print_value

if TYPE_CHECKING:
    from airflow_llm_provider.spec import CompletionSpec

#: Names that Airflow templates know and that differ from run to run.
_RUN_SCOPED = frozenset(
    {
        *(
            "now",
            "today",
            "ds",
            "ds_nodash",
            "ts",
            "ts_nodash",
            "ts_nodash_with_tz",
            "logical_date",
            "execution_date",
        ),
        *(
            "data_interval_start",
            "data_interval_end",
            "prev_ds",
            "next_ds",
            "yesterday_ds",
            "tomorrow_ds",
            "run_id",
        ),
        *(
            "dag",
            "dag_run",
            "task",
            "task_instance",
            "ti",
            "params",
            "var",
            "conn",
            "macros",
            "inlets",
            "outlets",
        ),
        *("triggering_asset_events", "partition_key"),
    }
)
_MOST_NAMES_SHOWN = 30


class PromptTemplate:
    """Turns rows into messages.

    A column is reached by its name, ``{{ subject }}``, or as ``{{ row["First name"] }}`` when its name is no Jinja
    name; ``row`` itself is therefore reserved. Nulls print as nothing, lists and objects as JSON; see
    :mod:`airflow_llm_provider.prompt.text`. Values are printed, never rendered.

    :param spec: the spec whose ``prompt`` and ``system`` are used.
    :raises LLMInputError: when the template cannot be compiled, or asks for what a prompt must not have.
    """

    def __init__(self, spec: CompletionSpec) -> None:
        if not isinstance(spec.prompt, str):
            raise LLMInputError("CompletionSpec.prompt is no template: use prompt_of(spec)")
        self._bindings, plain, self._render, fixed_text_behind = _understand(spec.prompt)
        self._pairs = tuple(self._bindings.items())
        #: The messages before the user's, the same for every row.
        self.opening = opening_of(spec)
        #: The constant texts around the columns that a plain template prints, and these columns: ``None``: it is richer.
        self.plain: tuple[Sequence[str], Sequence[str]] | None = (
            ([clean_text(text) for text in plain.between], [column for _, column in plain.slots])
            if plain is not None and plain.slots
            else None
        )
        #: Text of the prompt that is the same in every row and stands behind the first column: what no provider's cache
        #: finds, since caches hold the beginnings of prompts.
        self.fixed_text_behind = fixed_text_behind

    @property
    def columns(self) -> frozenset[str]:
        """Columns that the template uses."""
        return frozenset(self._bindings.values())

    def check(self, available: Sequence[str], *, binary: Collection[str] = ()) -> None:
        """Compare the columns used with those there are.

        :param available: columns of the source.
        :param binary: those of them that hold bytes, which cannot be printed.
        :raises LLMInputError: naming the unknown columns, those there are and the likeliest mistake.
        """
        unknown = sorted(self.columns - set(available))
        if unknown:
            raise LLMInputError(_unknown_columns(unknown, available))
        undecoded = sorted(self.columns & set(binary))
        if undecoded:
            raise LLMInputError(
                f"the prompt uses {_listed(undecoded)}, which holds bytes: decode it into a text column first"
            )

    def is_empty(self, row: Mapping[str, Any]) -> bool:
        """Say whether every column used is null, NaN or blank, so that there is nothing to ask about."""
        return bool(self._pairs) and all(is_blank(row.get(column)) for _, column in self._pairs)

    def messages(self, row: Mapping[str, Any]) -> list[dict[str, str]]:
        """Render the messages for one row: :attr:`opening`, then the user's.

        :param row: the row's values by column, at least those in :attr:`columns`.
        :raises RowRenderError: when this row cannot be rendered.
        """
        return [*self.opening, {"role": "user", "content": self.text(row)}]

    def text(self, row: Mapping[str, Any]) -> str:
        """Render the user's message for one row.

        :raises RowRenderError: when this row cannot be rendered.
        """
        return clean_text(self._render(row))


def opening_of(spec: CompletionSpec) -> list[dict[str, str]]:
    """Return the messages with which every conversation of a spec begins."""
    return [] if spec.system is None else [{"role": "system", "content": clean_text(spec.system)}]


Renderer = Callable[[Mapping[str, Any]], str]


@dataclass(frozen=True, kw_only=True)
class _PlainParts:
    """A template that only prints columns: constant parts, and where the columns go."""

    parts: list[str]
    slots: list[tuple[int, str]]

    @property
    def between(self) -> list[str]:
        """The constant texts before, between and after the slots."""
        places = [-1, *(position for position, _ in self.slots), len(self.parts)]
        return ["".join(self.parts[start + 1 : end]) for start, end in itertools.pairwise(places)]


@functools.lru_cache(maxsize=8)  # the check of a task, its split and its first request all ask
def _understand(prompt: str) -> tuple[RowBindings, _PlainParts | None, Renderer, str]:
    environment = prompt_environment()
    tree, bindings = parse(environment, prompt)
    plain = _plain_parts(tree, bindings)
    render = (
        _plain_renderer(plain)
        if plain is not None
        else _jinja_renderer(compiled(environment, tree), tuple(bindings.items()))
    )
    return bindings, plain, render, _fixed_text_behind(tree)


def _plain_parts(tree: nodes.Template, bindings: RowBindings) -> _PlainParts | None:
    parts: list[str] = []
    slots: list[tuple[int, str]] = []
    for statement in tree.body:
        if not isinstance(statement, nodes.Output):
            return None
        for node in statement.nodes:
            if isinstance(node, nodes.TemplateData):
                parts.append(node.data)
            elif isinstance(node, nodes.Name) and node.name in bindings:
                slots.append((len(parts), bindings[node.name]))
                parts.append("")
            else:
                return None
    return _PlainParts(parts=parts, slots=slots)


def _fixed_text_behind(tree: nodes.Template) -> str:
    texts = [node.data for node in tree.find_all(nodes.TemplateData)]
    first = tree.body[0] if tree.body else None
    if isinstance(first, nodes.Output) and first.nodes and isinstance(first.nodes[0], nodes.TemplateData):
        texts = texts[1:]
    return "".join(texts)


def _plain_renderer(plain: _PlainParts) -> Renderer:
    """Build the renderer of a plain template: the usual one, at a fraction of Jinja's time."""
    parts, slots = plain.parts, plain.slots

    def render(row: Mapping[str, Any]) -> str:
        filled = parts.copy()
        for position, column in slots:
            try:
                value = row[column]
                filled[position] = value if type(value) is str else print_value(value)
            except (RowRenderError, KeyError, ValueError) as error:
                raise _render_error(error, column=column) from None
        return "".join(filled)

    return render


def _jinja_renderer(template: Template, pairs: tuple[tuple[str, str], ...]) -> Renderer:
    functions = dict(template.globals)
    render_parts = template.root_render_func

    def render(row: Mapping[str, Any]) -> str:
        try:
            values = functions.copy()
            for name, column in pairs:
                value = row[column]
                # NaN is made null here, so that {% if score %} and {{ score }} agree.
                values[name] = None if type(value) is not str and is_missing(value) else value
            # What Template.render does, without its chain of mappings, which takes a third of its time.
            return "".join(render_parts(template.new_context(values, shared=True)))
        except Exception as error:  # noqa: BLE001 -- a template can raise anything
            raise _render_error(error, line=_template_line(error, template)) from None

    return render


def _render_error(error: Exception, *, column: str | None = None, line: int | None = None) -> RowRenderError:
    """Name the kind of error and its place; the text of foreign errors may quote values, so it is dropped."""
    where = "" if line is None else f" in line {line} of the prompt"
    if isinstance(error, RowRenderError):
        return RowRenderError(f"{error.reason}{where}", column=error.column or column)
    if isinstance(error, KeyError):
        return RowRenderError(f"the row lacks a column that the prompt uses{where}", column=column)
    return RowRenderError(f"{type(error).__name__}{where}", column=column)


def _template_line(error: BaseException, template: Template) -> int | None:
    """Find where in the template the error arose: the innermost frame of its compiled code."""
    line, frame = None, error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == "<template>":
            line = template.get_corresponding_lineno(frame.tb_lineno)
        frame = frame.tb_next
    return line


def _unknown_columns(unknown: Sequence[str], available: Sequence[str]) -> str:
    hints = []
    for name in unknown:
        if name in _RUN_SCOPED:
            hints.append(
                f"{name!r} is a value of the run, not of the row: it would ask every row anew in every run; put it into "
                "a column of the source, or into the Airflow-templated source and destination"
            )
        elif close := difflib.get_close_matches(name, available, n=1):
            hints.append(f"did you mean {_reference(close[0])} for {name!r}?")
    advice = "; ".join(hints) or "use one of these, or {% raw %}…{% endraw %} around braces meant literally"
    return (
        f"the prompt uses unknown columns: {_listed(unknown)}. The source has: {_listed(available)}. {advice}"
    )


def _reference(column: str) -> str:
    return repr(column) if column.isidentifier() else f'row["{column}"]'


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:_MOST_NAMES_SHOWN])
    more = len(names) - _MOST_NAMES_SHOWN
    return (shown or "none") + (f" and {more} more" if more > 0 else "")
