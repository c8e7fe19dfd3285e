"""Read a dataset, count it, cut it into shards; say what it will cost before anything is sent."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from os import PathLike, fspath
from typing import TYPE_CHECKING

from airflow_llm_provider.dataset.drafting.split import draft_split
from airflow_llm_provider.dataset.files.layout import Layout
from airflow_llm_provider.dataset.files.urls import Resolver, resolve
from airflow_llm_provider.engine.clock import Clock, SystemClock
from airflow_llm_provider.jobs.claim import Claimant
from airflow_llm_provider.jobs.options import SplitOptions
from airflow_llm_provider.jobs.splitting.commit import commit
from airflow_llm_provider.jobs.splitting.estimate import SplitResult, estimate_of, refuse_if_none_can_be_sent
from airflow_llm_provider.jobs.splitting.opening import (
    Opened,
    log_left_out,
    open_files,
    open_table,
    settings_of,
)
from airflow_llm_provider.jobs.splitting.split_by_file import split_by_file
from airflow_llm_provider.prices import Pricer

if TYPE_CHECKING:
    from airflow_llm_provider.dataset.sources.memory import InMemory, MemorySource
    from airflow_llm_provider.dataset.sources.source import Source
    from airflow_llm_provider.spec import CompletionSpec

_log = logging.getLogger(__name__)


def split(
    spec: CompletionSpec,
    source: str | PathLike[str] | InMemory,
    destination: str | PathLike[str],
    *,
    options: SplitOptions | None = None,
    resolver: Resolver = resolve,
    pricer: Pricer | None = None,
    claimant: Claimant | None = None,
    clock: Clock | None = None,
    log: logging.Logger | None = None,
) -> SplitResult:
    """Cut ``source`` into shards under ``destination``.

    The same input and settings give the same plan, so doing it again costs nothing; rows whose answers are stored
    under ``destination`` are not asked again, whatever shard they now lie in.

    :param source: file, folder or glob, any fsspec URL; or a table in memory, as
        :class:`~airflow_llm_provider.dataset.sources.memory.MemorySource` takes it.
    :param destination: folder of the output and of all state; any fsspec URL.
    :param resolver: from a URL to a filesystem.
    :param pricer: prices for the estimate.
    :param claimant: who splits, for whoever finds the destination in use; ``None``: this process.
    :raises LLMBusyError: another run works on the destination; nothing was written.
    :raises LLMInputError: bad source, prompt or setting; nothing was written.
    :raises LLMStateError: storage that cannot be read or written.
    """
    source = fspath(source) if isinstance(source, PathLike) else source
    destination = fspath(destination) if isinstance(destination, PathLike) else destination
    options = options or SplitOptions()
    log = log or _log
    pricer = pricer or Pricer()
    claimant = claimant or Claimant()
    clock = clock or SystemClock()
    if options.split_by == "file" and not options.dry_run:
        return split_by_file(
            spec,
            source,
            destination,
            options=options,
            resolver=resolver,
            pricer=pricer,
            claimant=claimant,
            clock=clock,
            log=log,
        )
    opened: Opened[Source] | Opened[MemorySource] = (
        open_files(spec, source, destination, options=options, resolver=resolver, pricer=pricer)
        if isinstance(source, str)
        else open_table(spec, source, destination, options=options, pricer=pricer)
    )
    layout = Layout(destination, resolver)
    lease = claimant.on_destination(layout, start_over=options.start_over)
    if not options.dry_run:
        # Before hours of counting, and without a trace should the input turn out to be bad.
        lease.look()
    with opened.preparation as preparation:
        drafted = draft_split(
            opened.rows,
            spec=spec,
            layout=layout,
            settings=settings_of(options),
            prepare=preparation.prepare,
            bound=options.max_shards_from,
        )
    with drafted as draft:
        for note in (*preparation.notes, *opened.rows.notes, *draft.notes):
            log.warning("%s", note)
        log_left_out(opened.rows.report, log)
        refuse_if_none_can_be_sent(draft)
        # What is answered is looked up under the lease, so that no answer comes in unseen.
        with nullcontext() if options.dry_run else lease:
            estimate = estimate_of(spec, draft, pricer, start_over=options.start_over)
            log.info("%s", estimate)
            if options.dry_run:
                log.info("Dry run: nothing was written and nothing will be sent.")
                return SplitResult(plan_uri=None, plan_id=None, references=(), estimate=estimate)
            return commit(
                lambda created: draft.commit(
                    estimate=estimate.to_json(), created=created, start_over=options.start_over
                ),
                layout=layout,
                destination=destination,
                estimate=estimate,
                start_over=options.start_over,
                lease=lease,
                claimant=claimant,
                clock=clock,
                log=log,
            )
