"""All three steps in one process: for a notebook, a test or a benchmark, with the same files and promises."""

from __future__ import annotations

import dataclasses
from functools import partial
from os import fspath
from typing import TYPE_CHECKING, Any

from airflow_llm_provider.clients.openai import OpenAIClient
from airflow_llm_provider.dataset.files.urls import Resolver, resolve
from airflow_llm_provider.dataset.leases.lease_record import Owner
from airflow_llm_provider.errors import LLMInputError
from airflow_llm_provider.jobs.claim import Claimant
from airflow_llm_provider.jobs.completing.accounts import Account
from airflow_llm_provider.jobs.completing.shard_series import ShardSeries
from airflow_llm_provider.jobs.merge import merge
from airflow_llm_provider.jobs.options import KEEP_DAYS, CompleteOptions, SplitOptions, check_keep_days
from airflow_llm_provider.jobs.signals import GRACE_SECONDS, ended_by_signals
from airflow_llm_provider.jobs.splitting.split import split
from airflow_llm_provider.limiters import account_key
from airflow_llm_provider.prices import Pricer
from airflow_llm_provider.spec import CompletionSpec

if TYPE_CHECKING:
    import logging
    import random
    from collections.abc import Callable, Mapping, Sequence
    from os import PathLike

    import pyarrow.compute as pc

    from airflow_llm_provider.dataset.sources.memory import InMemory
    from airflow_llm_provider.engine.call import ModelClient
    from airflow_llm_provider.engine.clock import Clock
    from airflow_llm_provider.engine.events import Observer
    from airflow_llm_provider.xcom import RunSummary

_SHARD_TOKENS = 2_000_000


def run_dataset(
    spec: CompletionSpec,
    source: str | PathLike[str] | InMemory,
    destination: str | PathLike[str],
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    columns: Sequence[str] | None = None,
    where: str | pc.Expression | None = None,
    limit: int | None = None,
    concurrency: int = 16,
    shard_tokens: int | None = None,
    timeout: float = 60.0,
    max_attempts: int = 5,
    max_output_attempts: int = 1,
    failure_threshold: float | None = None,
    keep_days: int | None = KEEP_DAYS,
    progress_interval: float = 10.0,
    limits: Mapping[str, Any] | None = None,
    limiter_url: str | None = None,
    max_tokens_total: int | None = None,
    max_cost_usd: float | None = None,
    fallback_model: str | None = None,
    adaptive: bool | None = None,
    deduplicate: bool | None = None,
    max_outage: float | None = 300.0,
    max_limit_wait: float | None = 300.0,
    max_same_rejections: int | None = 10,
    split_options: SplitOptions | None = None,
    prices: Mapping[str, Mapping[str, float]] | None = None,
    resolver: Resolver = resolve,
    client: Callable[[], ModelClient] | None = None,
    observer: Observer | None = None,
    clock: Clock | None = None,
    rng: random.Random | None = None,
    log: logging.Logger | None = None,
) -> RunSummary:
    """Split, ask and merge, shard after shard.

    A second call with the same arguments sends nothing; a call after a crash sends only the rest. SIGTERM and Ctrl-C end the
    process when what is in flight has come back, eight seconds later at most, unless somebody else has set a handler.

    :param source: file, folder or glob, any fsspec URL; or a table in memory: a pandas DataFrame, an Arrow table or
        reader, or whatever has ``__arrow_c_stream__``, such as a Polars DataFrame.
    :param destination: folder of the output; any fsspec URL.
    :param base_url: the endpoint, such as ``http://127.0.0.1:8000/v1``; ``None``: OpenAI's.
    :param api_key: key of the account; ``None``: none is sent.
    :param columns: input columns that the output carries, in this order; ``None``: all. This and whatever else of
        :class:`~airflow_llm_provider.jobs.options.SplitOptions` is given here goes before ``split_options``.
    :param where: which rows are taken: a condition as text, or a ``pyarrow.compute.Expression``; ``None``: all.
    :param limit: only the first of them, so many; ``None``: all.
    :param shard_tokens: prompt tokens of one shard; ``None``: those of ``split_options``, or 2,000,000 without these. In
        one process shards run one after the other and are only where finished results are put in place, so they are ten
        times as large as the operators'.
    :param keep_days: days after which plans, shards and answers below ``destination`` that no run has used are deleted;
        ``None``: never.
    :param limits: requests and tokens a minute, for every model or by model, such as
        ``{"requests_per_minute": 500, "tokens_per_minute": 200_000}``; ``None``: not known.
    :param limiter_url: where limits and budget are shared; by default, and as ``file://``, between all processes of
        this machine that send with the same key to the same endpoint. These and the options below are those of
        :class:`~airflow_llm_provider.jobs.options.CompleteOptions`.
    :param split_options: further options of the split.
    :param prices: US dollars per million tokens by model, as :class:`~airflow_llm_provider.prices.Pricer` takes them.
    :param observer: hears of every event, an :class:`~airflow_llm_provider.engine.events.Observer`: for metrics.
    :param client: makes the client, instead of ``base_url`` and ``api_key``.
    :raises LLMError: as the three steps do.
    """
    _check_kinds(spec, split_options, client)
    options = CompleteOptions(
        concurrency=concurrency,
        timeout=timeout,
        max_attempts=max_attempts,
        max_output_attempts=max_output_attempts,
        failure_threshold=failure_threshold,
        progress_interval=progress_interval,
        limiter_url=limiter_url,
        max_tokens_total=max_tokens_total,
        max_cost_usd=max_cost_usd,
        fallback_model=fallback_model,
        adaptive=adaptive,
        deduplicate=deduplicate,
        max_outage=max_outage,
        max_limit_wait=max_limit_wait,
        max_same_rejections=max_same_rejections,
    )
    check_keep_days(keep_days)  # merge does it too, but then the answers are paid for
    if client is None:
        # Says what is wrong with them before anything is written.
        OpenAIClient(base_url=base_url, api_key=api_key)
    pricer = Pricer(prices, base_url=base_url)

    given: dict[str, Any] = {
        "columns": columns,
        "where": where,
        "limit": limit,
        "shard_tokens": shard_tokens,
        "max_cost_usd": max_cost_usd,
    }
    taken = {name: value for name, value in given.items() if value is not None}
    splitting = dataclasses.replace(split_options or SplitOptions(shard_tokens=_SHARD_TOKENS), **taken)
    if splitting.dry_run:
        raise LLMInputError("split_options.dry_run writes no plan: call split() itself for an estimate")
    claimant = Claimant(owner=Owner.of_process(), leave=True)
    result = split(
        spec,
        source,
        destination,
        options=splitting,
        resolver=resolver,
        pricer=pricer,
        claimant=claimant,
        clock=clock,
        log=log,
    )
    destination = fspath(destination)
    account = Account(
        name="",
        client=(lambda _: client())
        if client is not None
        else lambda most: OpenAIClient(base_url=base_url, api_key=api_key, concurrency=most),
        # A client of the caller's own may belong to any account.
        key="" if client is not None and limiter_url is None else account_key(base_url or "", api_key or ""),
        limits=limits,
        pricer=pricer,
    )
    series = ShardSeries(
        result.references,
        accounts=[account],
        options=options,
        destination=destination,
        resolver=resolver,
        claimant=claimant,
        observer=observer,
        clock=clock,
        rng=rng,
        log=log,
    )
    with ended_by_signals(partial(series.stop, grace=GRACE_SECONDS)):
        states = series.run()
    return merge(
        str(result.plan_uri),
        states=[state.to_json() for state in states],
        destination=destination,
        failure_threshold=failure_threshold,
        keep_days=keep_days,
        resolver=resolver,
        claimant=claimant,
        clock=clock,
        log=log,
    )


def _check_kinds(spec: object, split_options: object, client: object) -> None:
    """Refuse what is of another kind, before anything is written."""
    for name, value, fits, wanted in (
        ("spec", spec, isinstance(spec, CompletionSpec), "a CompletionSpec"),
        (
            "split_options",
            split_options,
            isinstance(split_options, SplitOptions | None),
            "SplitOptions, or None",
        ),
        ("client", client, client is None or callable(client), "a function that makes one, or None"),
    ):
        if not fits:
            raise LLMInputError(f"{name} is a {type(value).__name__}: give {wanted}")
