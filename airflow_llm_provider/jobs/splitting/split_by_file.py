"""A split by many workers: list the input files, count and cut each group of them, make one plan of all."""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING

from airflow_llm_provider.dataset.drafting.counted import forget_counted, read_counted, write_counted
from airflow_llm_provider.dataset.drafting.file_groups import (
    Listing,
    group_files,
    read_listing,
    write_listing,
)
from airflow_llm_provider.dataset.drafting.join import Join
from airflow_llm_provider.dataset.drafting.split import check_split, draft_split
from airflow_llm_provider.dataset.files.layout import Layout
from airflow_llm_provider.dataset.files.urls import Resolver, resolve
from airflow_llm_provider.dataset.sources.listing import find_files
from airflow_llm_provider.engine.clock import Clock, SystemClock
from airflow_llm_provider.errors import LLMInputError, LLMSourceNotFoundError, LLMStateError
from airflow_llm_provider.jobs.amounts import counted as amount
from airflow_llm_provider.jobs.claim import Claimant
from airflow_llm_provider.jobs.splitting.commit import commit
from airflow_llm_provider.jobs.splitting.estimate import SplitResult, estimate_of, refuse_if_none_can_be_sent
from airflow_llm_provider.jobs.splitting.opening import log_left_out, open_files, settings_of
from airflow_llm_provider.jobs.splitting.preparation import RowPreparation
from airflow_llm_provider.prices import Pricer
from airflow_llm_provider.xcom import GroupReference

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_llm_provider.dataset.drafting.counted import Counted
    from airflow_llm_provider.dataset.sources.memory import InMemory
    from airflow_llm_provider.jobs.options import SplitOptions
    from airflow_llm_provider.spec import CompletionSpec

_log = logging.getLogger(__name__)
_MOST_NAMED = 5
_MOST_IN_A_GROUP = 10_000


def split_by_file(
    spec: CompletionSpec,
    source: str | InMemory,
    destination: str,
    *,
    options: SplitOptions,
    resolver: Resolver,
    pricer: Pricer,
    claimant: Claimant,
    clock: Clock,
    log: logging.Logger,
) -> SplitResult:
    """Do the three steps one after the other, as many tasks would do them; see :func:`~airflow_llm_provider.jobs.split`."""
    references = list_files(
        spec,
        source,
        destination,
        options=options,
        resolver=resolver,
        pricer=pricer,
        claimant=claimant,
        log=log,
    )
    for reference in references:
        count_files(reference, destination, resolver=resolver, log=log)
    return plan_shards(
        references[0].listing,
        destination,
        start_over=options.start_over,
        resolver=resolver,
        pricers=[pricer],
        claimant=claimant,
        clock=clock,
        log=log,
    )


def list_files(
    spec: CompletionSpec,
    source: str | InMemory,
    destination: str,
    *,
    options: SplitOptions,
    resolver: Resolver = resolve,
    pricer: Pricer | None = None,
    claimant: Claimant | None = None,
    log: logging.Logger | None = None,
) -> tuple[GroupReference, ...]:
    """List the input files, find out their common schema, and gather them in groups, at least one.

    With ``options.limit`` all files are one group: the first rows of each would not be the first rows of all.

    :param claimant: who lists, and will plan; ``None``: this process.
    :raises LLMBusyError: another run works on the destination; nothing was written.
    :raises LLMInputError: bad source, prompt or setting; nothing was written.
    :raises LLMStateError: storage that cannot be read or written.
    """
    log = log or _log
    if not isinstance(source, str):
        raise LLMInputError(
            "split_by is 'file', and the source is in memory: leave split_by out, or give files"
        )
    check_prompt(spec)
    opened = open_files(
        spec, source, destination, options=options, resolver=resolver, pricer=pricer or Pricer()
    )
    layout = Layout(destination, resolver)
    check_split(opened.rows, spec=spec, layout=layout, settings=settings_of(options))
    (claimant or Claimant()).on_destination(layout, start_over=options.start_over).look()
    sizes = [file.size for file in opened.source.files]
    groups = (
        group_files(sizes, most_bytes=options.split_bytes, most_groups=options.max_shards)
        if options.limit is None
        else (len(sizes),)
    )
    listing = Listing(
        spec=spec,
        settings=settings_of(options),
        bound=options.max_shards_from,
        url=source,
        known=opened.source.known,
        reading=opened.reading,
        groups=groups,
    )
    for note in opened.source.notes:
        log.warning("%s", note)
    listing_id = write_listing(layout, listing)
    log.info("%s in %s to count", amount(len(sizes), "file"), amount(len(groups), "group"))
    first = 0
    references = []
    for index, files in enumerate(groups):
        size = sum(sizes[first : first + files])
        references.append(
            GroupReference(listing=listing_id, index=index, first=first, files=files, size=size)
        )
        first += files
    return tuple(references)


def check_prompt(spec: CompletionSpec) -> None:
    """Refuse a function for a prompt: what counts the files reads the prompt from storage.

    :raises LLMInputError: naming the ways out.
    """
    if callable(spec.prompt):
        raise LLMInputError(
            "split_by is 'file' and the prompt is a function, which the tasks that count files do not know: use a template, "
            "or leave split_by out"
        )


def count_files(
    reference: GroupReference,
    destination: str,
    *,
    resolver: Resolver = resolve,
    log: logging.Logger | None = None,
) -> Counted:
    """Read the files of one group, render and count their rows, cut them into shards, and keep these.

    :raises LLMInputError: a file that is damaged, or another one than was listed.
    :raises LLMStateError: storage that cannot be read or written.
    """
    layout = Layout(destination, resolver)
    listing = read_listing(layout, reference.listing)
    source = listing.open(reference.index, resolver)
    rows = listing.reading.select(source)
    # A file that is another one by now need not be read to its end.
    source.check_unchanged()
    with RowPreparation(listing.spec) as preparation:
        drafted = draft_split(
            rows,
            spec=listing.spec,
            layout=layout,
            # Whether there are too many is for the plan to say, which knows all of them. So many no file can hold well.
            settings=dataclasses.replace(listing.settings, max_shards=_MOST_IN_A_GROUP, enlarge=True),
            prepare=preparation.prepare,
            bound="one group of files",
        )
    with drafted as draft:
        counted = write_counted(
            layout,
            listing.name(reference.index),
            draft,
            notes=tuple(preparation.notes),
            report=rows.report,
        )
    (log or _log).info(
        "%s in %s: %s, %s tokens in, %s",
        amount(counted.rows, "row"),
        amount(reference.files, "file"),
        amount(counted.requests, "request"),
        f"{counted.tokens:,}",
        amount(len(counted.shards), "shard"),
    )
    return counted


def plan_shards(
    listing_id: str,
    destination: str,
    *,
    start_over: bool = False,
    resolver: Resolver = resolve,
    pricers: Sequence[Pricer] = (),
    claimant: Claimant | None = None,
    clock: Clock | None = None,
    log: logging.Logger | None = None,
) -> SplitResult:
    """Make one plan of all groups, once each is counted.

    :param listing_id: of the listing, as every reference of :func:`list_files` names it.
    :param start_over: forget every stored answer of the destination first, and pay again.
    :param pricers: prices for the estimate, at each endpoint; one that is not known makes the cost unknown.
    :param claimant: who plans, for whoever finds the destination in use; ``None``: this process.
    :raises LLMBusyError: another run works on the destination; no plan was written.
    :raises LLMInputError: too many shards, no row that can be sent, or files that are others than were listed; what was
        counted is deleted again, except in the last case.
    :raises LLMStateError: a group is not counted, or storage cannot be read or written.
    """
    log = log or _log
    layout = Layout(destination, resolver)
    listing = read_listing(layout, listing_id)
    source = listing.open(None, resolver)
    try:
        source.check_listed(find_files(listing.url, resolver).files)
    except LLMSourceNotFoundError:
        source.check_listed(())
    counted = _all_counted(layout, listing)
    try:
        join = Join(layout, listing, counted)
        for note in join.notes:
            log.warning("%s", note)
        log_left_out(join.report, log)
        refuse_if_none_can_be_sent(join)
    except LLMInputError:
        _forget(layout, listing)
        raise
    model = listing.spec.model
    prices = list(pricers) or [Pricer()]
    unknown = (p for p in prices if p.estimate(model, prompt_tokens=1, completion_tokens=1) is None)
    pricer = next(unknown, prices[0])
    claimant = claimant or Claimant()
    # What is answered is looked up under the lease, so that no answer comes in unseen.
    with claimant.on_destination(layout, start_over=start_over) as lease:
        estimate = estimate_of(listing.spec, join, pricer, start_over=start_over)
        log.info("%s", estimate)
        return commit(
            lambda created: join.commit(
                listing.reading.select(source),
                created=created,
                estimate=estimate.to_json(),
                start_over=start_over,
            ),
            layout=layout,
            destination=destination,
            estimate=estimate,
            start_over=start_over,
            lease=lease,
            claimant=claimant,
            clock=clock or SystemClock(),
            log=log,
        )


def _all_counted(layout: Layout, listing: Listing) -> list[Counted]:
    counted = []
    missing = []
    for index in range(len(listing.groups)):
        found = read_counted(layout, listing.name(index))
        if found is None:
            missing.append(index)
        else:
            counted.append(found)
    if missing:
        named = ", ".join(map(str, missing[:_MOST_NAMED]))
        more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
        raise LLMStateError(
            f"{len(missing)} of {len(listing.groups)} groups of input files are not counted: {named}{more}; run the tasks "
            "that count them, then this again"
        )
    return counted


def _forget(layout: Layout, listing: Listing) -> None:
    """Delete what nobody will use: with the same files and settings it would end in the same way."""
    for index in range(len(listing.groups)):
        forget_counted(layout, listing.name(index))
    layout.storage.delete(layout.listing(listing.listing_id))
