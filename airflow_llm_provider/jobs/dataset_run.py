"""All three steps in one process: for a notebook, a test or a benchmark, with the same files and promises."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_llm_provider.clients.openai import OpenAIClient
from airflow_llm_provider.dataset.urls import Resolver, resolve
from airflow_llm_provider.jobs.blocking import run_blocking
from airflow_llm_provider.jobs.merge import merge
from airflow_llm_provider.jobs.options import CompleteOptions, SplitOptions
from airflow_llm_provider.jobs.shard_run import ShardRun
from airflow_llm_provider.jobs.split import split
from airflow_llm_provider.prices import Pricer

if TYPE_CHECKING:
    import logging
    import random
    from collections.abc import Callable, Mapping, Sequence

    from airflow_llm_provider.engine.call import ModelClient
    from airflow_llm_provider.engine.clock import Clock
    from airflow_llm_provider.spec import CompletionSpec
    from airflow_llm_provider.xcom import RunSummary, ShardReference


def run_dataset(
    spec: CompletionSpec,
    source: str,
    destination: str,
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    concurrency: int = 16,
    shard_tokens: int = 200_000,
    timeout: float = 60.0,
    max_attempts: int = 5,
    max_output_attempts: int = 1,
    failure_threshold: float | None = None,
    progress_interval: float = 10.0,
    split_options: SplitOptions | None = None,
    prices: Mapping[str, Mapping[str, float]] | None = None,
    resolver: Resolver = resolve,
    client: Callable[[], ModelClient] | None = None,
    clock: Clock | None = None,
    rng: random.Random | None = None,
    log: logging.Logger | None = None,
) -> RunSummary:
    """Split, ask and merge, shard after shard.

    A second call with the same arguments sends nothing; a call after a crash sends only the rest.

    :param source: file, folder or glob; any fsspec URL.
    :param destination: folder of the output; any fsspec URL.
    :param base_url: the endpoint, such as ``http://127.0.0.1:8000/v1``; ``None``: OpenAI's.
    :param api_key: key of the account; ``None``: none is sent.
    :param split_options: further options of the split; ``shard_tokens`` here is the one of this call unless given.
    :param prices: US dollars per million tokens by model, as :class:`~airflow_llm_provider.prices.Pricer` takes them.
    :param client: makes the client, instead of ``base_url`` and ``api_key``.
    :raises LLMError: as the three steps do.
    """
    options = CompleteOptions(
        concurrency=concurrency,
        timeout=timeout,
        max_attempts=max_attempts,
        max_output_attempts=max_output_attempts,
        failure_threshold=failure_threshold,
        progress_interval=progress_interval,
    )
    pricer = Pricer(prices, base_url=base_url)

    result = split(
        spec,
        source,
        destination,
        options=split_options or SplitOptions(shard_tokens=shard_tokens),
        resolver=resolver,
        pricer=pricer,
        clock=clock,
        log=log,
    )
    if result.plan_uri is None:
        raise ValueError("split_options.dry_run writes no plan: call split() itself for an estimate")
    make = client or (lambda: OpenAIClient(base_url=base_url, api_key=api_key, concurrency=concurrency))

    def shard_run(reference: ShardReference, sender: ModelClient) -> ShardRun:
        return ShardRun(
            reference,
            client=sender,
            options=options,
            destination=destination,
            resolver=resolver,
            pricer=pricer,
            probe=reference.index == 0,
            clock=clock,
            rng=rng,
            log=log,
        )

    states = run_blocking(_ask_all(result.references, make, shard_run)) if result.references else []
    return merge(
        result.plan_uri,
        states=states,
        destination=destination,
        failure_threshold=failure_threshold,
        resolver=resolver,
        clock=clock,
        log=log,
    )


async def _ask_all(
    references: Sequence[ShardReference],
    make: Callable[[], ModelClient],
    shard_run: Callable[[ShardReference, ModelClient], ShardRun],
) -> list[dict[str, Any]]:
    """Ask shard after shard with one client, so that connections are opened once."""
    client = make()
    try:
        return [(await shard_run(reference, client).ask()).to_json() for reference in references]
    finally:
        await client.aclose()
