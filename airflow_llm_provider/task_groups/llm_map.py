"""One call for the whole job: split a dataset, complete its shards, merge them."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
from typing import TYPE_CHECKING, Any, Never

from airflow.sdk import TaskGroup, XComArg

from airflow_llm_provider.errors import LLMInputError
from airflow_llm_provider.hooks.llm import LLMHook
from airflow_llm_provider.operators.asking import DEFAULT_CONCURRENCY
from airflow_llm_provider.operators.complete import CompleteShardOperator
from airflow_llm_provider.operators.merge import DEFAULT_KEEP_DAYS, MergeShardsOperator
from airflow_llm_provider.operators.place import naming
from airflow_llm_provider.operators.split_by_file import DEFAULT_SPLIT_BYTES
from airflow_llm_provider.prompt import prompt_of
from airflow_llm_provider.spec import CompletionSpec
from airflow_llm_provider.task_groups.split_tasks import split_tasks
from airflow_llm_provider.task_groups.surroundings import (
    asset_of,
    default_retries,
    pool_of,
    retry_policy,
    weight_rule_of,
)
from airflow_llm_provider.task_groups.task_docs import DOCS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from airflow.sdk import Asset, AssetAlias
    from airflow.sdk.definitions.mappedoperator import MappedOperator

    from airflow_llm_provider.operators.shard import ShardDatasetOperator
    from airflow_llm_provider.operators.split_by_file import ListFilesOperator, PlanShardsOperator

_COMPLETE_ARGUMENTS = (
    "conn_id",
    "conn_ids",
    "destination",
    "storage_conn_id",
    "concurrency",
    "timeout",
    "max_attempts",
    "max_output_attempts",
    "failure_threshold",
    "progress_interval",
    "max_tokens_total",
    "max_cost_usd",
    "fallback_model",
    "deduplicate",
    "adaptive",
    "max_outage",
    "max_limit_wait",
    "max_same_rejections",
)


class LLMTaskGroup(TaskGroup):
    """The tasks of one :func:`llm_map`. Depends and is depended on like any task group."""

    #: Returns the shards: what counts, plans and writes them, or with ``split_by="file"`` what plans them.
    split: ShardDatasetOperator | PlanShardsOperator
    #: With ``split_by="file"``: lists the input files, and counts them, one task instance for each group.
    list_files: ListFilesOperator | None
    count_files: MappedOperator | None
    #: Asks the model, one task instance for each shard.
    complete: MappedOperator
    #: Writes the output.
    merge: MergeShardsOperator
    #: What the output is known by to other DAGs, ``schedule=[label.asset]``; ``None``: nothing.
    asset: Asset | AssetAlias | None

    @property
    def output(self) -> XComArg:
        """The run's summary: rows by status, files, tokens, cost."""
        return self.merge.output


def llm_map(
    *,
    group_id: str,
    spec: CompletionSpec,
    source: Any,
    destination: Any,
    prompt: Callable[[dict[str, Any]], Any] | None = None,
    conn_id: str = LLMHook.default_conn_name,
    conn_ids: Mapping[str, int] | Sequence[str] | None = None,
    model: str | None = None,
    storage_conn_id: str | None = None,
    pool: str | None = None,
    concurrency: int = DEFAULT_CONCURRENCY,
    shard_tokens: int | str = 200_000,
    max_rows_per_shard: int | str | None = None,
    max_bytes_per_shard: int | str | None = None,
    max_shards: int | str | None = None,
    fit_max_shards: bool | str = True,
    columns: Sequence[str] | str | None = None,
    where: str | None = None,
    order_by: str | None = None,
    partition_by: Sequence[str] | str | None = None,
    split_by: str | None = None,
    split_bytes: int | str = DEFAULT_SPLIT_BYTES,
    format: str | None = None,  # noqa: A002 -- the word pyarrow, pandas and Spark use
    encoding: str = "utf-8",
    delimiter: str | None = None,
    types: Mapping[str, str] | None = None,
    sheet: str | None = None,
    limit: int | str | None = None,
    timeout: float = 60.0,
    max_attempts: int = 5,
    max_output_attempts: int = 1,
    failure_threshold: float | None = None,
    progress_interval: float = 10.0,
    max_tokens_total: int | str | None = None,
    max_cost_usd: float | str | None = None,
    fallback_model: str | None = None,
    deduplicate: bool | str | None = None,
    adaptive: bool | None = None,
    max_outage: float | None = 300.0,
    max_limit_wait: float | None = 300.0,
    max_same_rejections: int | None = 10,
    keep_days: int | None = DEFAULT_KEEP_DAYS,
    start_over: bool | str = False,
    dry_run: bool | str = False,
    retries: int | None = None,
    asset: Asset | AssetAlias | str | bool = True,
    default_args: Mapping[str, Any] | None = None,
    split_kwargs: Mapping[str, Any] | None = None,
    complete_kwargs: Mapping[str, Any] | None = None,
    merge_kwargs: Mapping[str, Any] | None = None,
    tooltip: str = "",
    **unknown: Never,
) -> LLMTaskGroup:
    """Ask a model about every row of a dataset: the tasks ``split``, ``complete`` (one per shard) and ``merge``.

    Everything is checked while the DAG is parsed, except templates, which are checked by the split before anything is
    counted.

    :param group_id: id of the task group.
    :param spec: what to ask for every row.
    :param source: file, folder or glob of Parquet, CSV, JSONL, Excel, Avro or ORC; templated, or the output of a task.
    :param destination: folder of the output and of everything kept for resuming; templated, or the output of a task.
    :param prompt: function of a row that makes its messages, for a spec without a prompt; what ``@task.llm_complete``
        gives.
    :param conn_id: connection of the model; templated.
    :param conn_ids: several connections instead, whose accounts take turns: a list, or weights by connection id;
        templated.
    :param model: model instead of the spec's, such as ``"{{ params.model }}"``; empty: the spec's.
    :param storage_conn_id: connection of the storage, for URLs that name none themselves; templated.
    :param pool: pool of the ``complete`` tasks; one slot is one request in flight. ``None``: that of ``default_args``,
        else the option ``[llm] default_pool``.
    :param concurrency: most requests in flight of one shard, hence the slots it takes.
    :param shard_tokens: prompt tokens of one shard; templated.
    :param max_rows_per_shard: most rows of one shard; templated.
    :param max_bytes_per_shard: most bytes of one shard's input rows, as they lie in memory; templated.
    :param max_shards: most shards; never more than ``core.max_map_length``; templated.
    :param fit_max_shards: enlarge ``shard_tokens`` until the shards fit, and say so; ``False``: fail; templated.
    :param columns: input columns that the output carries, in this order, as a list or ``"id, body"``; the prompt may use
        others. ``None``: all; templated.
    :param where: which rows are taken, as ``"lang = 'de' AND score >= 3"``. ``None``: all; templated.
    :param order_by: ``"tokens"``: rows of like size share shards; the output keeps the input's order; templated.
    :param partition_by: columns of the output, the input's or the answer's, whose values name its folders, as a list or
        ``"ds, label"``. ``None``: one folder; templated.
    :param split_by: ``"file"``: the tasks ``list``, ``count`` (one per group of input files) and ``plan`` in place of
        ``split``, so that many workers count a large dataset.
    :param split_bytes: most bytes of the files that one ``count`` counts; templated.
    :param format: ``parquet``, ``csv``, ``jsonl``, ``excel``, ``avro`` or ``orc``; ``None``: by the files' names; templated.
    :param encoding: encoding of CSV and JSONL; templated.
    :param delimiter: delimiter of CSV; templated.
    :param types: types of columns of CSV where they are not text, as ``{"score": "int64"}``; templated.
    :param sheet: sheet of Excel files; ``None``: the only one that is visible; templated.
    :param limit: only the first rows that ``where`` takes, so many, for a trial; their answers serve the whole later; templated.
    :param timeout: seconds for one request.
    :param max_attempts: most requests for one row.
    :param max_output_attempts: most requests for one row whose answers cannot be parsed.
    :param failure_threshold: share of a shard's rows without an answer above which its task fails; ``None``: only a
        shard without any answer fails.
    :param progress_interval: seconds between progress lines in the log.
    :param max_tokens_total: tokens, prompt and answer, that the whole run may use; templated.
    :param max_cost_usd: US dollars that the whole run may cost; refused when a price is not known; templated.
    :param fallback_model: cheaper model to ask from 95 % of the budget on, and while the endpoint does not answer;
        templated.
    :param deduplicate: ask identical requests of a shard once. ``None``: when the spec's temperature is 0; templated.
    :param adaptive: find out how many requests in flight the endpoint takes, up to ``concurrency``. ``None``: when no
        limits are known.
    :param max_outage: seconds for which an endpoint that does not answer is waited for. ``None``: for ever.
    :param max_limit_wait: seconds for which limits may hold back a request; then the slots are given back.
    :param max_same_rejections: first rows that the endpoint may all reject alike. ``None``: any number.
    :param keep_days: days after which stored plans, shards and answers that no run used are deleted; ``None``: never.
    :param start_over: forget earlier answers of this destination, and pay for all rows again; templated.
    :param dry_run: log rows, shards, tokens and cost, and stop; templated, such as ``"{{ params.dry_run }}"``.
    :param retries: Airflow retries of each of the tasks. ``None``: those of ``default_args``, else 2, with a delay that
        doubles from one minute.
    :param asset: what the output is known by to other DAGs: an asset or alias, or its name or URI. ``True``: an asset
        named ``<dag id>.<group id>``. ``False``: none.
    :param default_args: arguments of all three tasks, before those of the DAG.
    :param split_kwargs: further arguments of the ``split`` task, or those in its place, such as ``{"queue": "io"}``.
    :param complete_kwargs: further arguments of the ``complete`` task, such as ``{"execution_timeout": ...}``.
    :param merge_kwargs: further arguments of the ``merge`` task.
    :param tooltip: text shown over the group in the UI.
    :raises LLMInputError: on a wrong argument, naming the DAG, the group and the remedy.
    """
    arguments = dict(locals())
    group = _new_group(group_id, default_args, tooltip)
    with naming(f"DAG {group.dag.dag_id!r}, llm_map {group.group_id!r}", TypeError, ValueError), group:
        _check(group, unknown)
        spec = arguments["spec"] = with_prompt(spec, prompt)
        common = {**default_retries(group), **({} if retries is None else {"retries": retries})}
        group.asset = asset_of(group, asset=asset)
        parts = split_tasks(arguments, {**common, **(split_kwargs or {})})
        group.list_files, group.count_files, group.split = parts
        # A template that cannot be compiled fails here, an unknown column in the split, which knows the columns.
        prompt_of(spec)
        group.complete = CompleteShardOperator.partial(
            task_id="complete",
            **{
                "doc_md": DOCS["complete"],
                **_picked(arguments, _COMPLETE_ARGUMENTS),
                "pool": pool_of(group, pool),
                **retry_policy(group),
                **weight_rule_of(group),
                **common,
                **(complete_kwargs or {}),
            },
        ).expand(shard=group.split.output)
        group.merge = MergeShardsOperator(
            task_id="merge",
            plan=group.split.plan,
            states=XComArg(group.complete),
            outlets=[] if group.asset is None else [group.asset],
            **{
                "doc_md": DOCS["merge"],
                "storage_conn_id": storage_conn_id,
                "keep_days": keep_days,
                **common,
                **(merge_kwargs or {}),
            },
        )
    return group


def with_prompt(spec: CompletionSpec, prompt: Callable[[dict[str, Any]], Any] | None) -> CompletionSpec:
    """Return a spec without a prompt with a function for one.

    :raises LLMInputError: when it has a prompt.
    """
    if prompt is None or not isinstance(spec, CompletionSpec):
        return spec
    if spec.prompt is not None:
        raise LLMInputError(
            "the spec has a prompt and there is a function for it: leave one of them out, the spec's prompt= or the "
            "function"
        )
    return dataclasses.replace(spec, prompt=prompt)


def _picked(arguments: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: arguments[name] for name in names}


def _new_group(group_id: str, default_args: Mapping[str, Any] | None, tooltip: str) -> LLMTaskGroup:
    defaults: Any = dict(default_args or {})
    try:
        return LLMTaskGroup(group_id=group_id, default_args=defaults, tooltip=tooltip)
    except RuntimeError as error:
        raise LLMInputError(
            f"llm_map {group_id!r}: {error}: call it inside `with DAG(...)` or @dag"
        ) from error


def _check(group: LLMTaskGroup, unknown: Mapping[str, Any]) -> None:
    known = [name for name in inspect.signature(llm_map).parameters if name != "unknown"]
    for name in unknown:
        close = difflib.get_close_matches(name, known, n=1)
        advice = (
            f"did you mean {close[0]}?"
            if close
            else "arguments of single tasks go into split_kwargs and its like"
        )
        raise LLMInputError(f"there is no argument {name}: {advice}")
    if any(True for _ in group.iter_mapped_task_groups()):
        raise LLMInputError(
            "it is inside a mapped task group, where Airflow maps no further tasks: use CompleteDatasetOperator, which "
            "does the job in one task, call llm_map once for each item in a Python loop, or give one source that covers all "
            "items"
        )
