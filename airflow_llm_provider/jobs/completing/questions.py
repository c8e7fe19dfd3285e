"""The requests of a shard's open rows, rendered one by one as the engine pulls them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from airflow_llm_provider.engine.call import Outcome, Request
from airflow_llm_provider.prompt import PromptTemplate, RequestShape, opening_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from airflow_llm_provider.dataset.plans.shards import ShardFile
    from airflow_llm_provider.spec import CompletionSpec


class Questions:
    """Requests for the rows of a shard that have no outcome yet.

    :param spec: what to ask.
    :param shard: the rows.
    :param outcomes: one per row; rows with an outcome are passed over.
    :param followers: rows that take another's answer; passed over as well.
    """

    def __init__(
        self,
        spec: CompletionSpec,
        shard: ShardFile,
        outcomes: Sequence[Outcome | None],
        followers: Iterable[int] = (),
    ) -> None:
        self._spec = spec
        self._shard = shard
        self._open = [outcome is None for outcome in outcomes]
        for index in followers:
            self._open[index] = False
        self.pending = sum(self._open)

    def __iter__(self) -> Iterator[Request]:
        shape = RequestShape(self._spec)
        tokens = self._shard.keys.tokens
        for index, messages in self._conversations():
            yield Request(
                index=index,
                body=shape.body(messages),
                prompt_tokens=tokens[index],
                max_output_tokens=self._spec.max_output_tokens,
            )

    def _conversations(self) -> Iterator[tuple[int, list[dict[str, str]]]]:
        """Yield the messages of each open row: those that the split kept, else the template's."""
        if self._shard.has_messages:
            opening = opening_of(self._spec)
            for index, kept in enumerate(self._shard.messages()):
                if self._open[index] and kept is not None:
                    yield index, [*opening, *orjson.loads(kept)]
            return
        template = PromptTemplate(self._spec)
        for index, row in enumerate(self._shard.iter_rows(sorted(template.columns))):
            if self._open[index]:
                yield index, template.messages(row)
