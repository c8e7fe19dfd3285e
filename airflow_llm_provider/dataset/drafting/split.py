"""From a source to shards: read once, count and pack first, write afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_llm_provider.dataset.arrow.schemas import carried_schema
from airflow_llm_provider.dataset.drafting.draft import Draft
from airflow_llm_provider.dataset.files.destination import check_destination
from airflow_llm_provider.dataset.outcomes.columns import OutputColumns
from airflow_llm_provider.dataset.plans.partitions import check_partition_by

if TYPE_CHECKING:
    from airflow_llm_provider.dataset.files.layout import Layout
    from airflow_llm_provider.dataset.plans.plan import SplitSettings
    from airflow_llm_provider.dataset.plans.prepared import Prepare, RowSource
    from airflow_llm_provider.spec import CompletionSpec

#: Rows that are read, rendered and counted at a time.
BATCH_ROWS = 2048


def draft_split(
    source: RowSource,
    *,
    spec: CompletionSpec,
    layout: Layout,
    settings: SplitSettings,
    prepare: Prepare,
    batch_rows: int = BATCH_ROWS,
    bound: str = "max_shards",
) -> Draft:
    """Read, count and pack a source without writing anything to the destination.

    :param prepare: renders and counts the rows of one batch.
    :param bound: what sets ``settings.max_shards``, as a person knows it.
    :raises LLMInputError: when there would be more shards than allowed, when columns clash or make no folders, when the destination holds
        files of someone else, or when it and the source lie inside each other.
    """
    check_split(source, spec=spec, layout=layout, settings=settings)
    draft = Draft(source=source, spec=spec, layout=layout, settings=settings, bound=bound)
    try:
        draft.read(prepare, batch_rows)
    except BaseException:
        draft.close()
        raise
    return draft


def check_split(source: RowSource, *, spec: CompletionSpec, layout: Layout, settings: SplitSettings) -> None:
    """Refuse what can be refused before a row is read.

    :raises LLMInputError: when columns clash or make no folders, when the destination holds files of someone else, or when it and the
        source lie inside each other.
    """
    columns, carried = OutputColumns(spec), carried_schema(source.schema, source.carried)
    columns.check(carried, others=source.schema.names)
    check_partition_by(settings.partition_by, columns.output_schema(carried))
    source.check_apart(layout)
    check_destination(layout)
