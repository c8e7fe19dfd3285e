"""From the rows of a record batch to what the split needs of them: tokens, fingerprints, and rows never to be sent."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Self

import orjson

from airflow_llm_provider.answers import AnswerJudge
from airflow_llm_provider.dataset.arrow.rows import blank_rows, joined_texts, rows_of
from airflow_llm_provider.dataset.counting.bundle_counter import BundleCounter
from airflow_llm_provider.dataset.counting.shared_counter import SharedCounter
from airflow_llm_provider.dataset.counting.tokens import ChatTokens, token_counter
from airflow_llm_provider.dataset.plans.prepared import PreparedRows
from airflow_llm_provider.engine.status import RowStatus
from airflow_llm_provider.prompt import PromptFunction, RequestShape, RowRenderError, prompt_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    import pyarrow as pa

    from airflow_llm_provider.prompt import PromptTemplate
    from airflow_llm_provider.spec import CompletionSpec

#: Tokens of the shortest beginning of a prompt that OpenAI and most others cache.
_SHORTEST_CACHED = 1024
_EMPTY = "every column that the prompt uses is null or blank"
_NOTHING = "the prompt's function returned nothing to ask"


class RowPreparation:
    """Renders, counts and fingerprints rows, without asking anything. To be left when all are counted.

    :param spec: what will be asked.
    """

    def __init__(self, spec: CompletionSpec) -> None:
        self.template = prompt_of(spec)
        # A schema that cannot be compiled is found here, and not by the first paid answer.
        AnswerJudge(spec)
        self._spec = spec
        self._shape = RequestShape(spec)
        #: Columns that the prompt uses; ``None``: it is a function, which gets them all.
        self.columns = (
            None if isinstance(self.template, PromptFunction) else tuple(sorted(self.template.columns))
        )
        counter = token_counter(spec.model, spec.encoding)
        self._counter = SharedCounter(counter) if isinstance(counter, BundleCounter) else counter
        self._tokens = ChatTokens(self._counter, spec.output_schema)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._counter.close()

    @property
    def notes(self) -> list[str]:
        """What a person should know about the counting, and about the prompt."""
        notes = [self._counter.note] if self._counter.note else []
        behind = "" if isinstance(self.template, PromptFunction) else self.template.fixed_text_behind
        # No shorter text has so many tokens.
        tokens = self._counter.count([behind])[0] if len(behind) >= _SHORTEST_CACHED else 0
        if tokens >= _SHORTEST_CACHED:
            notes.append(
                f"{tokens:,} tokens of the prompt are the same in every row, but stand behind its first column, where no "
                "provider's prompt cache finds them: put them before it, or into system="
            )
        return notes

    def prepare(self, batch: pa.RecordBatch) -> Callable[[], PreparedRows]:
        """Render one batch, and return what counts it, in another thread or process as far as the counter can.

        :param batch: rows of the source.
        """
        if isinstance(self.template, PromptFunction):
            return self._prepare_by_function(batch, self.template)
        rendered = self._render_columns(batch, self.template) or self._render_rows(batch, self.template)
        around = self._tokens.around(self.template.opening)
        counting = self._counter.begin(rendered.texts)
        fingerprints = self._shape.fingerprints(self.template.opening, rendered.texts)

        def count() -> PreparedRows:
            return self._prepared(rendered, fingerprints, [around + count for count in counting()])

        return count

    def _prepare_by_function(
        self, batch: pa.RecordBatch, function: PromptFunction
    ) -> Callable[[], PreparedRows]:
        rendered = _Rendered(rows=batch.num_rows)
        conversations: list[list[dict[str, str]]] = []
        positions: list[int] = []
        for position, row in enumerate(rows_of(batch, batch.schema.names)):
            if position == 0:
                function.check_steady(row)
            try:
                messages = function.messages(row)
            except RowRenderError as error:
                rendered.set_aside(position, RowStatus.REJECTED, str(error))
                continue
            if messages is None:
                rendered.set_aside(position, RowStatus.EMPTY_INPUT, _NOTHING)
                continue
            positions.append(position)
            rendered.messages[position] = orjson.dumps(messages).decode()
            conversations.append([*function.opening, *messages])
        rendered.positions = positions
        fingerprints = [self._shape.fingerprint(messages) for messages in conversations]

        def count() -> PreparedRows:
            found = self._prepared(rendered, fingerprints, self._tokens.count(conversations))
            return dataclasses.replace(found, messages=rendered.messages)

        return count

    def _render_columns(self, batch: pa.RecordBatch, template: PromptTemplate) -> _Rendered | None:
        """Render a plain template over columns of text, the usual case, without a dict per row."""
        texts = joined_texts(batch, *template.plain) if template.plain else None
        if texts is None:
            return None
        rendered = _Rendered(rows=batch.num_rows)
        blank = blank_rows(batch, template.columns)
        for position in blank:
            rendered.set_aside(position, RowStatus.EMPTY_INPUT, _EMPTY)
        if blank:
            rendered.positions = [n for n, error in enumerate(rendered.errors) if error is None]
            rendered.texts = [texts[n] for n in rendered.positions]
        else:
            rendered.positions, rendered.texts = range(batch.num_rows), texts
        return rendered

    def _render_rows(self, batch: pa.RecordBatch, template: PromptTemplate) -> _Rendered:
        rendered = _Rendered(rows=batch.num_rows)
        positions: list[int] = []
        for position, row in enumerate(rows_of(batch, template.columns)):
            if template.is_empty(row):
                rendered.set_aside(position, RowStatus.EMPTY_INPUT, _EMPTY)
                continue
            try:
                rendered.texts.append(template.text(row))
            except RowRenderError as error:
                rendered.set_aside(position, RowStatus.REJECTED, str(error))
            else:
                positions.append(position)
        rendered.positions = positions
        return rendered

    def _prepared(
        self, rendered: _Rendered, fingerprints: list[bytes], counts: Sequence[int]
    ) -> PreparedRows:
        if len(counts) == rendered.rows and not self._exceeds_window(max(counts, default=0)):
            return PreparedRows(
                tokens=counts, fingerprints=fingerprints, statuses=rendered.statuses, errors=rendered.errors
            )
        tokens = [0] * rendered.rows
        kept: list[bytes | None] = [None] * rendered.rows
        for position, count, fingerprint in zip(rendered.positions, counts, fingerprints, strict=True):
            if self._exceeds_window(count):
                rendered.set_aside(
                    position,
                    RowStatus.CONTEXT_TOO_LONG,
                    f"{count} prompt tokens and an output cap of {self._spec.max_output_tokens} exceed the context "
                    f"window of {self._spec.context_window}",
                )
                continue
            tokens[position] = count
            kept[position] = fingerprint
        return PreparedRows(
            tokens=tokens, fingerprints=kept, statuses=rendered.statuses, errors=rendered.errors
        )

    def _exceeds_window(self, tokens: int) -> bool:
        window = self._spec.context_window
        # A count that is not the model's own may be several times too high: then the endpoint decides.
        return window is not None and self._counter.exact and tokens + self._spec.max_output_tokens > window


class _Rendered:
    """The texts of a batch, where they belong, and the rows without one."""

    def __init__(self, *, rows: int) -> None:
        self.rows = rows
        self.positions: list[int] | range = []
        self.texts: list[str] = []
        self.statuses: list[str | None] = [None] * rows
        self.errors: list[str | None] = [None] * rows
        self.messages: list[str | None] = [None] * rows

    def set_aside(self, position: int, status: RowStatus, error: str) -> None:
        """Note a row that will not be sent."""
        self.statuses[position] = status
        self.errors[position] = error
