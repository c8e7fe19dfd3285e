"""What is read of a source, and how: the same for all of its files, in every task that reads some of them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from airflow_llm_provider.dataset.sources.formats import ReadOptions
from airflow_llm_provider.dataset.sources.selection import Rows, Selection, columns_named
from airflow_llm_provider.dataset.sources.source import Known, Source, open_source
from airflow_llm_provider.errors import LLMInputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow.compute as pc

    from airflow_llm_provider.dataset.files.urls import Resolver


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What is read of a source, and how.

    :param options: how the files are read.
    :param prompt: columns that the prompt needs; ``None``: all, since only a function knows which.
    :param columns: columns that the output carries; ``None``: all.
    :param where: which rows are taken; ``None``: all.
    :param limit: only so many of them, from the first; ``None``: all.
    """

    options: ReadOptions
    prompt: tuple[str, ...] | None
    columns: tuple[str, ...] | None = None
    where: str | pc.Expression | None = None
    limit: int | None = None

    def open(self, url: str, *, resolver: Resolver, known: Known | None = None) -> Source:
        """Open the source.

        :param known: only some of its files, of which everything is known; ``None``: find out.
        """
        return open_source(
            url,
            resolver=resolver,
            options=self.options,
            columns_if_empty=sorted({*(self.prompt or ()), *columns_named(self.columns, self.where)}),
            known=known,
        )

    def select(self, source: Rows) -> Selection:
        """Return the rows and columns that are taken of an open source."""
        prompt = source.schema.names if self.prompt is None else self.prompt
        return Selection(source, prompt=prompt, columns=self.columns, where=self.where, limit=self.limit)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values.

        :raises LLMInputError: when a condition is no text.
        """
        if self.where is not None and not isinstance(self.where, str):
            raise LLMInputError(
                "where is an Arrow expression: with split_by='file' give a condition as text, which other tasks can read"
            )
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Rebuild it."""
        columns = value["columns"]
        return cls(
            options=ReadOptions(**value["options"]),
            prompt=None if value["prompt"] is None else tuple(value["prompt"]),
            columns=None if columns is None else tuple(columns),
            where=value["where"],
            limit=value["limit"],
        )
