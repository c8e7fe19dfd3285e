"""The split task: count, plan and write shards, and say what they will cost."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar, cast

from airflow.sdk import BaseOperator, XComArg

from airflow_llm_provider.errors import LLMInputError
from airflow_llm_provider.hooks.compat import airflow_option
from airflow_llm_provider.hooks.llm import LLMHook
from airflow_llm_provider.hooks.storage import storage_resolver
from airflow_llm_provider.links.run_page import RunPageLink
from airflow_llm_provider.operators.accounts import (
    check_cap,
    check_fallback,
    check_one_of_conn_ids,
    hooks_of,
    price_of_one,
    pricers_of,
    spec_of,
)
from airflow_llm_provider.operators.arguments import (
    as_count,
    as_delimiter,
    as_flag,
    as_location,
    as_optional_condition,
    as_optional_count,
    as_optional_dollars,
    as_optional_names,
    as_optional_order,
    as_optional_text,
    as_optional_types,
    as_optional_weights,
    as_text,
    check_known,
    check_spec,
    read_all,
)
from airflow_llm_provider.operators.handover import push_plan
from airflow_llm_provider.operators.owner import claimant_of
from airflow_llm_provider.operators.place import naming_task
from airflow_llm_provider.operators.pools import check_pools
from airflow_llm_provider.scheduling.failures import no_hopeless_retries
from airflow_llm_provider.xcom import PLAN_KEY

if TYPE_CHECKING:
    import logging
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context

    from airflow_llm_provider.jobs import SplitOptions, SplitResult
    from airflow_llm_provider.jobs.claim import Claimant
    from airflow_llm_provider.prices import Pricer
    from airflow_llm_provider.spec import CompletionSpec

#: Airflow's own default of ``core.max_map_length``.
_MAX_MAP_LENGTH = "1024"
_WOULD_FAIL = "A real run would fail: %s"


class ShardDatasetOperator(BaseOperator):
    """Cut a dataset into shards of a token budget, and return one small reference per shard for ``.expand()``.

    Nothing is sent to the model. The plan's URI is pushed under the XCom key ``plan``, also when there are no shards,
    the estimate under ``estimate``. Every argument but ``spec`` is templated; the prompt never is.

    :param spec: what to ask for every row.
    :param source: file, folder or glob of Parquet, CSV, JSONL, Excel, Avro or ORC: a URL, or a path on the worker.
    :param destination: folder of the output and of everything kept for resuming.
    :param conn_id: connection of the model, checked before anything is counted; its prices go into the estimate.
        ``None`` checks nothing.
    :param conn_ids: several connections instead: a list, or weights by connection id.
    :param model: model instead of the spec's; empty: the spec's.
    :param storage_conn_id: connection of the storage, for URLs that name none themselves.
    :param shard_tokens: prompt tokens of one shard; a row above it gets its own.
    :param max_rows_per_shard: most rows of one shard; ``None``: no bound.
    :param max_bytes_per_shard: most bytes of one shard's input rows, as they lie in memory; ``None``: no bound.
    :param max_shards: most shards; never more than ``core.max_map_length``.
    :param fit_max_shards: enlarge ``shard_tokens`` until the shards fit, and say so; ``False``: fail instead.
    :param columns: input columns that the output carries, in this order, as a list or ``"id, body"``; the prompt may use
        others. ``None``: all.
    :param where: which rows are taken, as ``"lang = 'de' AND score >= 3"``. ``None``: all.
    :param order_by: ``"tokens"``: rows of like size share shards; the output keeps the order of the input. ``None``:
        neighbours share shards.
    :param partition_by: columns of the output, the input's or the answer's, whose values name its folders, as a list or
        ``"ds, label"``. ``None``: one folder.
    :param format: ``parquet``, ``csv``, ``jsonl``, ``excel``, ``avro`` or ``orc``; ``None``: by the files' names.
    :param encoding: encoding of CSV and JSONL.
    :param delimiter: delimiter of CSV; ``None``: comma, or tab for ``.tsv``.
    :param types: types of columns of CSV where they are not text, as ``{"score": "int64"}``.
    :param sheet: sheet of Excel files; ``None``: the only one that is visible.
    :param limit: only the first rows that ``where`` takes, so many, for a trial; their answers serve the whole later. ``None``: all rows.
    :param start_over: forget earlier answers of this destination, and pay for all rows again.
    :param dry_run: log the estimate and stop: nothing is written, nothing after this task runs.
    :param max_cost_usd: US dollars that the run may cost, refused here when a price is not known: such a run could not
        be held to it.
    :param fallback_model: model to ask instead when the budget is nearly used up, whose price must be known then too.
    """

    template_fields: Sequence[str] = (
        "source",
        "destination",
        "conn_id",
        "conn_ids",
        "model",
        "storage_conn_id",
        "shard_tokens",
        "max_rows_per_shard",
        "max_bytes_per_shard",
        "max_shards",
        "fit_max_shards",
        "columns",
        "where",
        "order_by",
        "partition_by",
        "format",
        "encoding",
        "delimiter",
        "types",
        "sheet",
        "limit",
        "start_over",
        "dry_run",
        "max_cost_usd",
        "fallback_model",
    )
    ui_color = "#e8f0fe"
    operator_extra_links = (RunPageLink(),)

    _READERS: ClassVar[Mapping[str, Any]] = {
        "source": as_location,
        "destination": as_location,
        "conn_id": as_optional_text,
        "conn_ids": as_optional_weights,
        "model": as_optional_text,
        "storage_conn_id": as_optional_text,
        "shard_tokens": as_count,
        "max_rows_per_shard": as_optional_count,
        "max_bytes_per_shard": as_optional_count,
        "max_shards": as_optional_count,
        "fit_max_shards": as_flag,
        "columns": as_optional_names,
        "where": as_optional_condition,
        "order_by": as_optional_order,
        "partition_by": as_optional_names,
        "format": as_optional_text,
        "encoding": as_text,
        "delimiter": as_delimiter,
        "types": as_optional_types,
        "sheet": as_optional_text,
        "limit": as_optional_count,
        "start_over": as_flag,
        "dry_run": as_flag,
        "max_cost_usd": as_optional_dollars,
        "fallback_model": as_optional_text,
    }

    def __init__(
        self,
        *,
        spec: CompletionSpec,
        source: Any,
        destination: Any,
        conn_id: str | None = LLMHook.default_conn_name,
        conn_ids: Mapping[str, int] | Sequence[str] | None = None,
        model: str | None = None,
        storage_conn_id: str | None = None,
        shard_tokens: int | str = 200_000,
        max_rows_per_shard: int | str | None = None,
        max_bytes_per_shard: int | str | None = None,
        max_shards: int | str | None = None,
        fit_max_shards: bool | str = True,
        columns: Sequence[str] | str | None = None,
        where: str | None = None,
        order_by: str | None = None,
        partition_by: Sequence[str] | str | None = None,
        format: str | None = None,  # noqa: A002 -- the word pyarrow, pandas and Spark use
        encoding: str = "utf-8",
        delimiter: str | None = None,
        types: Mapping[str, str] | None = None,
        sheet: str | None = None,
        limit: int | str | None = None,
        start_over: bool | str = False,
        dry_run: bool | str = False,
        max_cost_usd: float | str | None = None,
        fallback_model: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.spec = spec
        self.source = source
        self.destination = destination
        self.conn_id = conn_id
        self.conn_ids = conn_ids
        self.model = model
        self.storage_conn_id = storage_conn_id
        self.shard_tokens = shard_tokens
        self.max_rows_per_shard = max_rows_per_shard
        self.max_bytes_per_shard = max_bytes_per_shard
        self.max_shards = max_shards
        self.fit_max_shards = fit_max_shards
        self.columns = columns
        self.where = where
        self.order_by = order_by
        self.partition_by = partition_by
        self.format = format
        self.encoding = encoding
        self.delimiter = delimiter
        self.types = types
        self.sheet = sheet
        self.limit = limit
        self.start_over = start_over
        # Hides the method that only prints rendered templates, which nothing in Airflow 3 calls.
        self.dry_run = dry_run  # type: ignore[assignment, method-assign]
        self.max_cost_usd = max_cost_usd
        self.fallback_model = fallback_model
        with naming_task(kwargs):
            self._check()

    @property
    def plan(self) -> XComArg:
        """The plan's URI, for :class:`~airflow_llm_provider.operators.merge.MergeShardsOperator`."""
        return XComArg(self, key=PLAN_KEY)

    def execute(self, context: Context) -> Any:
        """Split the dataset and return the references of its shards; none after a dry run."""
        with no_hopeless_retries():
            arguments = read_all(self._READERS, vars(self))
            self._check_pools(context, dry_run=arguments["dry_run"])
            result = self._split(arguments, claimant_of(context))
        push_plan(self, context, result)
        return [reference.to_json() for reference in result.references]

    def _check(self) -> None:
        check_spec(self.spec)
        check_known(self._READERS, vars(self), templated=self.template_fields)
        check_one_of_conn_ids(self.conn_id, self.conn_ids)
        check_fallback(self.fallback_model, self.model or self.spec.model)

    def _check_pools(self, context: Context, *, dry_run: bool) -> None:
        try:
            check_pools(self, getattr(context["ti"], "id", None), cast("logging.Logger", self.log))
        except LLMInputError as error:
            if not dry_run:
                raise
            self.log.warning(_WOULD_FAIL, error)

    def _split(self, arguments: Mapping[str, Any], claimant: Claimant) -> SplitResult:
        from airflow_llm_provider import jobs  # noqa: PLC0415 -- loads pyarrow, which a DAG file need not pay for

        spec = spec_of(self.spec, arguments)
        return jobs.split(
            spec,
            arguments["source"],
            arguments["destination"],
            options=self._split_options(arguments),
            resolver=storage_resolver(arguments["storage_conn_id"]),
            pricer=self._pricer(arguments, spec),
            claimant=claimant,
            log=cast("logging.Logger", self.log),
        )

    def _shard_bound(self, asked: int | None) -> dict[str, Any]:
        """Return how many shards there may be: no more than Airflow maps."""
        allowed = as_count(
            "core.max_map_length", airflow_option("core", "max_map_length", fallback=_MAX_MAP_LENGTH)
        )
        if asked is None or asked > allowed:
            return {"max_shards": allowed, "max_shards_from": "core.max_map_length"}
        return {}

    def _pricer(self, arguments: Mapping[str, Any], spec: CompletionSpec) -> Pricer:
        """Return the prices at the connection's endpoint, which also finds a wrong connection or limit early."""
        pricers = pricers_of({})
        try:
            pricers = pricers_of(hooks_of(arguments))
            check_cap(arguments["max_cost_usd"], (spec.model, arguments["fallback_model"]), pricers)
        except LLMInputError as error:
            if not arguments["dry_run"]:
                raise
            self.log.warning(_WOULD_FAIL, error)
        # One price that is not known makes the cost of the run unknown.
        return next((pricer for pricer in pricers if price_of_one(pricer, spec.model) is None), pricers[0])

    def _split_options(self, arguments: Mapping[str, Any]) -> SplitOptions:
        from airflow_llm_provider import jobs  # noqa: PLC0415 -- loads pyarrow, which a DAG file need not pay for

        # The cap was checked, at the prices of every connection.
        names = {f.name for f in dataclasses.fields(jobs.SplitOptions)} - {"max_cost_usd"}
        options = {name: value for name, value in arguments.items() if name in names}
        return jobs.SplitOptions(**options | self._shard_bound(arguments["max_shards"]))
