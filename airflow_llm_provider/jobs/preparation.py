"""From the rows of a record batch to what the split needs of them: tokens, fingerprints, and rows never to be sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_llm_provider.answers import AnswerJudge
from airflow_llm_provider.dataset.prepared import PreparedRows
from airflow_llm_provider.dataset.rows import rows_of
from airflow_llm_provider.dataset.tokens import ChatTokens, token_counter
from airflow_llm_provider.engine.status import RowStatus
from airflow_llm_provider.prompt import PromptTemplate, RequestShape, RowRenderError

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_llm_provider.spec import CompletionSpec


class RowPreparation:
    """Renders, counts and fingerprints rows, without asking anything.

    :param spec: what will be asked.
    """

    def __init__(self, spec: CompletionSpec) -> None:
        self.template = PromptTemplate(spec)
        # A schema that cannot be compiled is found here, and not by the first paid answer.
        AnswerJudge(spec)
        self._spec = spec
        self._shape = RequestShape(spec)
        self._columns = sorted(self.template.columns)
        self._counter = token_counter(spec.model, spec.encoding)
        self._tokens = ChatTokens(self._counter, spec.output_schema)

    @property
    def notes(self) -> list[str]:
        """What a person should know about the counting."""
        return [self._counter.note] if self._counter.note else []

    def prepare(self, batch: pa.RecordBatch) -> PreparedRows:
        """Prepare one batch.

        :param batch: rows of the source.
        """
        size = batch.num_rows
        tokens = [0] * size
        fingerprints: list[bytes | None] = [None] * size
        statuses: list[str | None] = [None] * size
        errors: list[str | None] = [None] * size
        positions, conversations = [], []
        for position, row in enumerate(rows_of(batch, self._columns)):
            if self.template.is_empty(row):
                statuses[position] = RowStatus.EMPTY_INPUT
                errors[position] = "every column that the prompt uses is null or blank"
                continue
            try:
                conversations.append(self.template.messages(row))
            except RowRenderError as error:
                statuses[position] = RowStatus.REJECTED
                errors[position] = str(error)
                continue
            positions.append(position)
        counts = self._tokens.count(conversations)
        for position, messages, count in zip(positions, conversations, counts, strict=True):
            if self._exceeds_window(count):
                statuses[position] = RowStatus.CONTEXT_TOO_LONG
                errors[position] = (
                    f"{count} prompt tokens and an output cap of {self._spec.max_output_tokens} exceed the context "
                    f"window of {self._spec.context_window}"
                )
                continue
            tokens[position] = count
            fingerprints[position] = self._shape.fingerprint(messages)
        return PreparedRows(tokens=tokens, fingerprints=fingerprints, statuses=statuses, errors=errors)

    def _exceeds_window(self, tokens: int) -> bool:
        window = self._spec.context_window
        return window is not None and tokens + self._spec.max_output_tokens > window
