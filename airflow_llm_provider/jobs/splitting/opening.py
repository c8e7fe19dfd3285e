"""The first look at a source: everything that can be refused before a row is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pyarrow as pa

from airflow_llm_provider.dataset.plans.plan import SplitSettings
from airflow_llm_provider.dataset.sources.formats import ReadOptions
from airflow_llm_provider.dataset.sources.reading import Reading
from airflow_llm_provider.dataset.sources.selection import Rows
from airflow_llm_provider.errors import LLMInputError
from airflow_llm_provider.jobs.amounts import counted
from airflow_llm_provider.jobs.price_check import check_price
from airflow_llm_provider.jobs.splitting.preparation import RowPreparation

if TYPE_CHECKING:
    import logging
    from collections.abc import Mapping

    from airflow_llm_provider.dataset.files.urls import Resolver
    from airflow_llm_provider.dataset.sources.memory import InMemory, MemorySource
    from airflow_llm_provider.dataset.sources.selection import Selection
    from airflow_llm_provider.dataset.sources.source import Source
    from airflow_llm_provider.jobs.options import SplitOptions
    from airflow_llm_provider.prices import Pricer
    from airflow_llm_provider.spec import CompletionSpec


S = TypeVar("S", bound=Rows)


@dataclass(frozen=True, kw_only=True)
class Opened(Generic[S]):
    """An open source.

    :param preparation: renders and counts its rows.
    :param reading: what is read of it, and how.
    :param source: the whole of it.
    :param rows: the rows and columns that are taken.
    """

    preparation: RowPreparation
    reading: Reading
    source: S
    rows: Selection


def open_files(
    spec: CompletionSpec,
    source: str,
    destination: str,
    *,
    options: SplitOptions,
    resolver: Resolver,
    pricer: Pricer,
) -> Opened[Source]:
    """Open the files of a source for a spec.

    :raises LLMInputError: bad source, prompt or setting.
    :raises LLMStateError: storage that cannot be read.
    """
    for name, value in (("source", source), ("destination", destination)):
        _check_given(name, value)
    preparation = RowPreparation(spec)
    reading = reading_of(options, preparation)
    files = reading.open(source, resolver=resolver)
    return _opened(spec, preparation, reading, files, options=options, pricer=pricer)


def open_table(
    spec: CompletionSpec, table: InMemory, destination: str, *, options: SplitOptions, pricer: Pricer
) -> Opened[MemorySource]:
    """Open a table in memory for a spec.

    :raises LLMInputError: bad table, prompt or setting.
    """
    from airflow_llm_provider.dataset.sources.memory import MemorySource  # noqa: PLC0415 -- loads pandas

    _check_given("destination", destination)
    preparation = RowPreparation(spec)
    reading = reading_of(options, preparation)
    return _opened(spec, preparation, reading, MemorySource(table), options=options, pricer=pricer)


def _opened(
    spec: CompletionSpec,
    preparation: RowPreparation,
    reading: Reading,
    source: S,
    *,
    options: SplitOptions,
    pricer: Pricer,
) -> Opened[S]:
    binary = [field.name for field in source.schema if _is_binary(field.type)]
    preparation.template.check(source.schema.names, binary=binary)
    selection = reading.select(source)
    if options.max_cost_usd is not None:
        check_price(pricer.estimate(spec.model, prompt_tokens=1, completion_tokens=1), spec.model)
    return Opened(preparation=preparation, reading=reading, source=source, rows=selection)


def _check_given(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise LLMInputError(f"{name} is a {type(value).__name__}: give a path or URL")
    if not value.strip():
        raise LLMInputError(
            f"{name} is empty: a template that renders to nothing would mean the current folder"
        )


def reading_of(options: SplitOptions, preparation: RowPreparation) -> Reading:
    """Return what is read of a source, and how."""
    return Reading(
        options=ReadOptions(
            format=options.format,
            encoding=options.encoding,
            delimiter=options.delimiter,
            sheet=options.sheet,
            types=None if options.types is None else dict(options.types),
        ),
        prompt=preparation.columns,
        columns=None if options.columns is None else tuple(options.columns),
        where=options.where,
        limit=options.limit,
    )


def log_left_out(report: Mapping[str, Any], log: logging.Logger) -> None:
    """Say what a condition left out.

    :param report: of the selection.
    """
    if report["where"] is not None:
        log.info(
            "where left out %s of the rows read, and passed over %s whose folders cannot match",
            f"{report['rows_left_out']:,}",
            counted(report["files_skipped"], "file"),
        )


def settings_of(options: SplitOptions) -> SplitSettings:
    """Return how the rows are cut."""
    return SplitSettings(
        shard_tokens=options.shard_tokens,
        max_rows=options.max_rows_per_shard,
        max_bytes=options.max_bytes_per_shard,
        max_shards=options.max_shards,
        enlarge=options.fit_max_shards,
        split_by=options.split_by,
        order_by=options.order_by,
        partition_by=tuple(options.partition_by or ()),
    )


def _is_binary(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    )
