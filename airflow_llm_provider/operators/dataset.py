"""The whole job in one task: for mapped task groups, and to be mapped over sources."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, cast

from airflow_llm_provider.errors import LLMInputError
from airflow_llm_provider.hooks.compat import AirflowSkipException
from airflow_llm_provider.hooks.llm import LLMHook
from airflow_llm_provider.hooks.storage import storage_resolver
from airflow_llm_provider.operators.accounts import check_one_of_conn_ids, hooks_of
from airflow_llm_provider.operators.arguments import as_count, check_given, check_spec, read_all
from airflow_llm_provider.operators.asking import DEFAULT_CONCURRENCY, OPTIONS, AsksModel, options_of
from airflow_llm_provider.operators.complete import CompleteShardOperator
from airflow_llm_provider.operators.handover import push_plan
from airflow_llm_provider.operators.mapping import same_for_all
from airflow_llm_provider.operators.merge import DEFAULT_KEEP_DAYS, MergeShardsOperator
from airflow_llm_provider.operators.outlets import emit_events
from airflow_llm_provider.operators.owner import claimant_of
from airflow_llm_provider.operators.place import naming_task
from airflow_llm_provider.operators.shard import ShardDatasetOperator
from airflow_llm_provider.scheduling.failures import no_hopeless_retries
from airflow_llm_provider.scheduling.waiting import coming_back_later
from airflow_llm_provider.xcom import SUMMARY_KEY

if TYPE_CHECKING:
    import logging
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context
    from airflow.sdk.definitions.mappedoperator import OperatorPartial

    from airflow_llm_provider.jobs import SplitResult
    from airflow_llm_provider.jobs.claim import Claimant
    from airflow_llm_provider.xcom import RunSummary


class CompleteDatasetOperator(AsksModel, ShardDatasetOperator):
    """Split a dataset, ask the model about every row and merge, in one task; return the run's summary.

    :func:`~airflow_llm_provider.llm_map` spreads one dataset over many tasks and is the usual choice. This is for where
    Airflow maps no further tasks, inside a mapped task group, and for many datasets of one shape:
    ``CompleteDatasetOperator.partial(task_id=..., ...).expand(source=[...])``; each needs a destination of its own.

    The shards are asked one after the other with one client. What was answered is kept as with ``llm_map``: a retry, a
    cleared task or a killed worker asks only for rows without an answer. After a dry run the task skips itself.

    ``pool_slots`` is ``concurrency`` unless set: a pool slot is one request in flight. Every asset among ``outlets`` gets
    an event whose extra is the summary.

    :param keep_days: days after which plans, shards and answers that no run has used are deleted; ``None``: never.
    :param merge_threshold: share of all rows without an answer above which the task fails, the output written; ``None``:
        no bound. ``failure_threshold`` is that of each shard, checked before the next is begun.

    Every other parameter is one of :class:`~airflow_llm_provider.operators.shard.ShardDatasetOperator` or
    :class:`~airflow_llm_provider.operators.complete.CompleteShardOperator`.
    """

    template_fields: Sequence[str] = (
        *ShardDatasetOperator.template_fields,
        "max_tokens_total",
        "deduplicate",
    )
    ui_color = "#e6f4ea"
    map_index_label = "{{ task.source }}"

    _READERS: ClassVar[Mapping[str, Any]] = {
        **{name: read for name, read in CompleteShardOperator._READERS.items() if name in OPTIONS},  # noqa: SLF001
        **ShardDatasetOperator._READERS,  # noqa: SLF001
        "keep_days": MergeShardsOperator._READERS["keep_days"],  # noqa: SLF001
        "merge_threshold": MergeShardsOperator._READERS["failure_threshold"],  # noqa: SLF001
    }

    def __init__(
        self,
        *,
        concurrency: int = DEFAULT_CONCURRENCY,
        timeout: float = 60.0,
        max_attempts: int = 5,
        max_output_attempts: int = 1,
        failure_threshold: float | None = None,
        merge_threshold: float | None = None,
        keep_days: int | None = DEFAULT_KEEP_DAYS,
        progress_interval: float = 10.0,
        max_tokens_total: int | str | None = None,
        deduplicate: bool | str | None = None,
        adaptive: bool | None = None,
        max_outage: float | None = 300.0,
        max_limit_wait: float | None = 300.0,
        max_same_rejections: int | None = 10,
        **kwargs: Any,
    ) -> None:
        self.concurrency = concurrency
        self.timeout = timeout
        self.max_attempts = max_attempts
        self.max_output_attempts = max_output_attempts
        self.failure_threshold = failure_threshold
        self.merge_threshold = merge_threshold
        self.keep_days = keep_days
        self.progress_interval = progress_interval
        self.max_tokens_total = max_tokens_total
        self.deduplicate = deduplicate
        self.adaptive = adaptive
        self.max_outage = max_outage
        self.max_limit_wait = max_limit_wait
        self.max_same_rejections = max_same_rejections
        with naming_task(kwargs):
            kwargs.setdefault("pool_slots", as_count("concurrency", concurrency))
            _check_connections(kwargs)
        super().__init__(**kwargs)

    @classmethod
    def partial(cls, **kwargs: Any) -> OperatorPartial:
        """Prepare the mapped task; see :meth:`airflow.sdk.BaseOperator.partial`.

        :raises LLMInputError: when a given argument is none, or all tasks would write into one destination.
        """
        with naming_task(kwargs):
            check_given(cls._READERS, kwargs, templated=cls.template_fields)
            if "destination" in kwargs and same_for_all(kwargs["destination"]):
                raise LLMInputError(
                    f"destination is {str(kwargs['destination'])!r} in partial(): each mapped task would replace the output "
                    "of the one before; give one for each in expand_kwargs(), beside source, or a template that tells them "
                    "apart, such as one with {{ ti.map_index }}"
                )
            _check_connections(kwargs)
            check_spec(kwargs.get("spec"))
        return super().partial(**kwargs)

    def execute(self, context: Context) -> Any:
        """Do all three steps and return the run's summary."""
        with no_hopeless_retries(), coming_back_later(context, cast("logging.Logger", self.log)):
            arguments = read_all(self._READERS, vars(self))
            claimant = claimant_of(context)
            result = self._split(arguments, claimant)
            push_plan(self, context, result)
            if result.plan_uri is None:
                raise AirflowSkipException("This was a dry run: nothing was written and nothing was sent")
            summary = self._complete_and_merge(context, arguments, result, claimant)
        emit_events(self, context, summary)
        return summary.to_json()

    def _shard_bound(self, asked: int | None) -> dict[str, Any]:  # noqa: ARG002 -- as asked
        """Leave the number of shards as it was asked for: none of them is a task."""
        return {}

    def _complete_and_merge(
        self, context: Context, arguments: Mapping[str, Any], result: SplitResult, claimant: Claimant
    ) -> RunSummary:
        from airflow_llm_provider import jobs  # noqa: PLC0415 -- loads pyarrow, which a DAG file need not pay for

        resolver = storage_resolver(arguments["storage_conn_id"])
        log = cast("logging.Logger", self.log)
        series = jobs.ShardSeries(
            result.references,
            accounts=[hook.get_account(weight=weight) for hook, weight in hooks_of(arguments).items()],
            options=options_of(arguments),
            destination=arguments["destination"],
            resolver=resolver,
            claimant=claimant,
            log=log,
        )
        with self._asking(context, series):
            states = series.run()
        summary = jobs.merge(
            str(result.plan_uri),
            states=[state.to_json() for state in states],
            keep_days=arguments["keep_days"],
            resolver=resolver,
            claimant=claimant,
            log=log,
        )
        if self.do_xcom_push:
            context["ti"].xcom_push(SUMMARY_KEY, summary.to_json())
        jobs.check_run(summary, arguments["merge_threshold"])
        return summary


def _check_connections(arguments: Mapping[str, Any]) -> None:
    """Refuse two ways to say on which connections to ask, and none: a split alone may do without."""
    conn_ids = arguments.get("conn_ids")
    if conn_ids is None and arguments.get("conn_id", LLMHook.default_conn_name) is None:
        raise LLMInputError("conn_id and conn_ids are None: give the connection on which the model is asked")
    check_one_of_conn_ids(arguments.get("conn_id"), conn_ids)
