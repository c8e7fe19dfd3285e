"""A condition at work: which rows of a batch it takes, and which files need not be read for it."""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pafs

from airflow_llm_provider.dataset.sources.where.condition import columns_of
from airflow_llm_provider.dataset.sources.where.expression import expression_of
from airflow_llm_provider.dataset.sources.where.syntax import parse
from airflow_llm_provider.errors import LLMInputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class RowFilter:
    """Takes the rows for which an expression is true; not those for which it is false or null.

    :param expression: over the columns of a source.
    :param schema: the source's columns.
    :param columns: names of those that the expression needs.
    :param text: the condition as a person would write it.
    """

    def __init__(
        self, expression: pc.Expression, schema: pa.Schema, columns: frozenset[str], text: str
    ) -> None:
        self._expression = expression
        self._schema = schema
        self.columns = columns
        self.text = text

    @classmethod
    def of(cls, where: str | pc.Expression, schema: pa.Schema) -> Self:
        """Make a filter for a source.

        :param where: a condition, or an Arrow expression.
        :param schema: columns of the source.
        :raises LLMInputError: when the condition cannot be read, or does not fit the columns.
        """
        columns: frozenset[str] | None
        if isinstance(where, str):
            condition = parse(where)
            expression = expression_of(condition, schema)
            columns = frozenset(column.path[0] for column in columns_of(condition))
        elif isinstance(where, pc.Expression):
            expression = where
            columns = None
        else:
            raise LLMInputError(
                f"where is a {type(where).__name__}: give a condition as text, or a pyarrow.compute.Expression"
            )
        try:
            _try(expression, schema)
        except (pa.ArrowException, TypeError) as error:
            raise LLMInputError(
                f"where does not fit the columns of the source ({' '.join(str(error).split())})"
            ) from error
        if columns is None:
            columns = frozenset(name for name in schema.names if _needs(expression, schema, name))
        return cls(expression, schema, columns, str(where))

    def take(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a batch that are taken, in their order.

        :raises LLMInputError: when the expression cannot be computed for a row, as a cast of Python's making.
        """
        try:
            # As a table: older versions of Arrow fail over a batch of which no row is left.
            kept = pa.Table.from_batches([batch]).filter(self._expression).combine_chunks().to_batches()
        except pa.ArrowException as error:
            # Arrow's words may quote the row.
            raise LLMInputError(
                f"where cannot be computed for some row ({type(error).__name__}): where={self.text}"
            ) from error
        return kept[0] if kept else batch.slice(0, 0)

    def may_match(self, files: Sequence[Mapping[str, str | None]]) -> list[bool]:
        """Tell for each file whether a row of it may be taken.

        :param files: for each the columns that have one value in all of its rows, such as those of Hive's folders.
        """
        if not any(self.columns.intersection(values) for values in files):
            return [True] * len(files)
        # Arrow simplifies the expression by what is known of each file; no file is opened.
        form, nowhere = ds.CsvFileFormat(), pafs.LocalFileSystem()
        fragments = [
            form.make_fragment(str(number), nowhere, partition_expression=_known(values))
            for number, values in enumerate(files)
        ]
        dataset = ds.FileSystemDataset(fragments, self._schema, form, nowhere)
        kept = {int(fragment.path) for fragment in dataset.get_fragments(self._expression)}
        return [number in kept for number in range(len(files))]


def _known(values: Mapping[str, str | None]) -> pc.Expression:
    known = [
        pc.field(name).is_null() if value is None else pc.field(name) == value
        for name, value in values.items()
    ]
    return functools.reduce(operator.and_, known) if known else pc.scalar(True)  # noqa: FBT003


def _try(expression: pc.Expression, schema: pa.Schema) -> None:
    schema.empty_table().filter(expression)


def _needs(expression: pc.Expression, schema: pa.Schema, name: str) -> bool:
    """Tell whether an expression cannot do without a column: Arrow does not say which it uses."""
    try:
        _try(expression, schema.remove(schema.get_field_index(name)))
    except pa.ArrowException:
        return True
    return False
