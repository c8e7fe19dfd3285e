"""Read a dataset, count it, cut it into shards; say what it will cost before anything is sent."""

from __future__ import annotations

import datetime as dt
import logging
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_llm_provider.dataset.formats import ReadOptions
from airflow_llm_provider.dataset.layout import Layout
from airflow_llm_provider.dataset.plan import SplitSettings
from airflow_llm_provider.dataset.selection import Selection, columns_named
from airflow_llm_provider.dataset.source import open_source
from airflow_llm_provider.dataset.split import Draft, draft_split
from airflow_llm_provider.dataset.urls import Resolver, public_uri, resolve
from airflow_llm_provider.engine.clock import Clock, SystemClock
from airflow_llm_provider.errors import LLMInputError
from airflow_llm_provider.jobs.amounts import counted, dollars
from airflow_llm_provider.jobs.engine_setup import check_price
from airflow_llm_provider.jobs.options import SplitOptions
from airflow_llm_provider.jobs.preparation import RowPreparation
from airflow_llm_provider.prices import Pricer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_llm_provider.spec import CompletionSpec
    from airflow_llm_provider.xcom import ShardReference

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a plan will spend at most.

    :param rows: rows of the input.
    :param shards: shards of the plan.
    :param requests: rows that are sent, or whose answers are there.
    :param answered: those of them whose answers are stored under the destination, so that they are not sent again.
    :param prompt_tokens: tokens read by all requests.
    :param max_completion_tokens: tokens written by all requests if every answer hits the cap.
    :param cost_low_usd: US dollars for what is not answered if every answer is empty; ``None``: unknown price.
    :param cost_high_usd: US dollars for what is not answered if every answer hits the cap; ``None``: unknown price.
    :param set_aside: rows by status that will not be sent.
    """

    rows: int
    shards: int
    requests: int
    answered: int
    prompt_tokens: int
    max_completion_tokens: int
    cost_low_usd: float | None
    cost_high_usd: float | None
    set_aside: Mapping[str, int]

    def to_json(self) -> dict[str, Any]:
        """Return the estimate as plain JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        if self.cost_low_usd is None or self.cost_high_usd is None:
            cost = "cost unknown (no price for this model at this endpoint)"
        else:
            left = f" for the other {self.requests - self.answered:,}" if self.answered else ""
            cost = f"cost{left} {dollars(self.cost_low_usd)} to {dollars(self.cost_high_usd)}"
        aside = ", ".join(f"{count:,} {status}" for status, count in self.set_aside.items())
        answered = f", of them {self.answered:,} answered already" if self.answered else ""
        return (
            f"{counted(self.rows, 'row')} in {counted(self.shards, 'shard')}: {counted(self.requests, 'request')}"
            f"{answered}, {self.prompt_tokens:,} tokens in, at most {self.max_completion_tokens:,} tokens out, {cost}"
            + (f"; not sent: {aside}" if aside else "")
        )


@dataclass(frozen=True, kw_only=True)
class SplitResult:
    """A plan, or in a dry run what it would be.

    :param plan_uri: URI of the plan; ``None`` in a dry run.
    :param plan_id: hash of the plan; ``None`` in a dry run.
    :param references: one per shard, in row order; none in a dry run.
    :param estimate: what the plan will spend.
    """

    plan_uri: str | None
    plan_id: str | None
    references: tuple[ShardReference, ...]
    estimate: Estimate


def split(
    spec: CompletionSpec,
    source: str,
    destination: str,
    *,
    options: SplitOptions | None = None,
    resolver: Resolver = resolve,
    pricer: Pricer | None = None,
    clock: Clock | None = None,
    log: logging.Logger | None = None,
) -> SplitResult:
    """Cut ``source`` into shards under ``destination``.

    The same input and settings give the same plan, so doing it again costs nothing; rows whose answers are stored
    under ``destination`` are not asked again, whatever shard they now lie in.

    :param source: file, folder or glob; any fsspec URL.
    :param destination: folder of the output and of all state; any fsspec URL.
    :param resolver: from a URL to a filesystem.
    :param pricer: prices for the estimate.
    :raises LLMInputError: bad source, prompt or setting; nothing was written.
    :raises LLMStateError: storage that cannot be read or written.
    """
    for name, value in (("source", source), ("destination", destination)):
        if not value.strip():
            raise LLMInputError(
                f"{name} is empty: a template that renders to nothing would mean the current folder"
            )
    options = options or SplitOptions()
    log = log or _log
    preparation = RowPreparation(spec)
    opened = _open(source, preparation, options, resolver)
    if options.max_cost_usd is not None:
        price = (pricer or Pricer()).estimate(spec.model, prompt_tokens=1, completion_tokens=1)
        check_price(price, spec.model)
    layout = Layout(destination, resolver)
    settings = SplitSettings(
        shard_tokens=options.shard_tokens,
        max_rows=options.max_rows_per_shard,
        max_shards=options.max_shards,
        enlarge=options.fit_max_shards,
    )
    with draft_split(
        opened,
        spec=spec,
        layout=layout,
        settings=settings,
        prepare=preparation.prepare,
        bound=options.max_shards_from,
    ) as draft:
        for note in (*preparation.notes, *opened.notes, *draft.notes):
            log.warning("%s", note)
        _log_left_out(opened, log)
        _refuse_if_none_can_be_sent(draft)
        estimate = _estimate(spec, draft, pricer or Pricer(), start_over=options.start_over)
        log.info("%s", estimate)
        if options.dry_run:
            log.info("Dry run: nothing was written and nothing will be sent.")
            return SplitResult(plan_uri=None, plan_id=None, references=(), estimate=estimate)
        created = dt.datetime.fromtimestamp((clock or SystemClock()).time(), tz=dt.UTC).isoformat()
        if options.start_over:
            log.warning(
                "Starting over: every stored answer under %s is forgotten and paid for again.",
                public_uri(destination),
            )
        plan = draft.commit(estimate=estimate.to_json(), created=created, start_over=options.start_over)
    return SplitResult(
        plan_uri=layout.uri(layout.plan(plan.plan_id)),
        plan_id=plan.plan_id,
        references=tuple(plan.references(layout)),
        estimate=estimate,
    )


def _open(url: str, preparation: RowPreparation, options: SplitOptions, resolver: Resolver) -> Selection:
    prompt = preparation.template.columns
    source = open_source(
        url,
        resolver=resolver,
        options=ReadOptions(format=options.format, encoding=options.encoding, delimiter=options.delimiter),
        columns_if_empty=sorted(prompt | columns_named(options.columns, options.where)),
    )
    binary = [field.name for field in source.schema if _is_binary(field.type)]
    preparation.template.check(source.schema.names, binary=binary)
    return Selection(source, prompt=prompt, columns=options.columns, where=options.where, limit=options.limit)


def _log_left_out(selection: Selection, log: logging.Logger) -> None:
    report = selection.report
    if report["where"] is not None:
        log.info(
            "where left out %s of the rows read, and passed over %s whose folders cannot match",
            f"{report['rows_left_out']:,}",
            counted(report["files_skipped"], "file"),
        )


def _is_binary(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    )


def _refuse_if_none_can_be_sent(draft: Draft) -> None:
    """Stop when the prompt fits no row at all: that is a mistake in the prompt, not in the rows."""
    rejected = draft.rows_by_status.get("rejected", 0)
    if draft.rows and rejected == draft.rows:
        raise LLMInputError(
            f"the prompt cannot be rendered for any of the {draft.rows:,} rows, the first time because: "
            f"{draft.first_error}; mend the prompt. Nothing was written or sent"
        )


def _estimate(spec: CompletionSpec, draft: Draft, pricer: Pricer, *, start_over: bool) -> Estimate:
    answered = 0 if start_over else draft.answered
    unanswered = draft.requests - answered
    # The average request: prices with tiers depend on the size of one request, not on their sum.
    average = round(draft.tokens / max(draft.requests, 1))

    def cost(completion_tokens: int) -> float | None:
        of_one = pricer.estimate(spec.model, prompt_tokens=average, completion_tokens=completion_tokens)
        return None if of_one is None else of_one * unanswered

    return Estimate(
        rows=draft.rows,
        shards=len(draft.shards),
        requests=draft.requests,
        answered=answered,
        prompt_tokens=draft.tokens,
        max_completion_tokens=draft.requests * spec.max_output_tokens,
        cost_low_usd=cost(0),
        cost_high_usd=cost(spec.max_output_tokens),
        set_aside=dict(draft.rows_by_status),
    )
