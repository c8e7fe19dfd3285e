"""The mapped task: ask the model about every row of one shard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, cast

from airflow.sdk import BaseOperator

from airflow_llm_provider.hooks.llm import LLMHook
from airflow_llm_provider.hooks.storage import storage_resolver
from airflow_llm_provider.links.run_page import RunPageLink
from airflow_llm_provider.operators.accounts import check_one_of_conn_ids, hooks_of
from airflow_llm_provider.operators.arguments import (
    as_count,
    as_optional_count,
    as_optional_dollars,
    as_optional_flag,
    as_optional_location,
    as_optional_seconds,
    as_optional_share,
    as_optional_text,
    as_optional_weights,
    as_seconds,
    as_text,
    check_given,
    check_known,
    read_all,
)
from airflow_llm_provider.operators.asking import DEFAULT_CONCURRENCY, AsksModel, options_of
from airflow_llm_provider.operators.owner import claimant_of
from airflow_llm_provider.operators.place import naming_task
from airflow_llm_provider.scheduling.failures import no_hopeless_retries
from airflow_llm_provider.scheduling.waiting import coming_back_later
from airflow_llm_provider.xcom import ShardReference, ShardState

if TYPE_CHECKING:
    import logging
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context
    from airflow.sdk.definitions.mappedoperator import OperatorPartial

    from airflow_llm_provider.jobs import ShardRun
    from airflow_llm_provider.jobs.claim import Claimant


class CompleteShardOperator(AsksModel, BaseOperator):
    """Ask the model about every row of one shard, and return the shard's state.

    Use it mapped, ``CompleteShardOperator.partial(task_id=...).expand(shard=split.output)``. Each answer is kept as it
    arrives: a retry, a cleared task or a killed worker asks only for rows without one. The state is also pushed under
    the XCom key ``shard_state``, whether the task succeeds or fails. Retries of Airflow happen for what may pass by
    itself; a refused key, an empty account or a refused parameter fail the task at once. While the endpoint asks to wait
    for long, the mapped task is put off as sensors are, holds no slots and uses up no retry.

    ``pool_slots`` is ``concurrency`` unless set: a pool slot is one request in flight.

    :param shard: a shard's reference from :class:`~airflow_llm_provider.operators.shard.ShardDatasetOperator`.
    :param conn_id: connection of the model.
    :param conn_ids: several connections instead, whose accounts take turns: a list, or weights by connection id.
    :param destination: folder that the split was given, for the rare reference whose URI would not fit into XCom.
    :param storage_conn_id: connection of the storage, for URLs that name none themselves.
    :param concurrency: most requests in flight.
    :param timeout: seconds for one request.
    :param max_attempts: most requests for one row.
    :param max_output_attempts: most requests for one row whose answers cannot be parsed.
    :param failure_threshold: share of rows without an answer above which the task fails, its good rows kept; ``None``:
        rows never fail the task, unless no row has an answer.
    :param progress_interval: seconds between progress lines in the log.
    :param max_tokens_total: prompt and answer tokens that the whole run, all shards of one plan, may use.
    :param max_cost_usd: US dollars that the whole run may cost.
    :param fallback_model: cheaper model to ask from 95 % of the budget on, and while the endpoint does not answer.
    :param deduplicate: ask identical requests of a shard once. ``None``: when the spec's temperature is 0.
    :param adaptive: find out how many requests in flight the endpoint takes, up to ``concurrency``. ``None``: when no
        limits are known.
    :param max_outage: seconds for which an endpoint that does not answer is waited for, before the task fails to be
        retried. ``None``: for ever.
    :param max_limit_wait: seconds for which the account's limits may hold back a request, before the task gives its slots
        back, or fails to be retried. ``None``: for ever.
    :param max_same_rejections: rows that the endpoint may reject from the first one on, all with one code, before the
        task fails as wrongly configured. ``None``: any number.
    """

    template_fields: Sequence[str] = (
        "conn_id",
        "conn_ids",
        "destination",
        "storage_conn_id",
        "max_tokens_total",
        "max_cost_usd",
        "fallback_model",
        "deduplicate",
    )
    ui_color = "#e6f4ea"
    operator_extra_links = (RunPageLink(),)
    #: The shard's own label.
    map_index_label = "{{ task.shard['label'] }}"

    _READERS: ClassVar[Mapping[str, Any]] = {
        "conn_id": as_text,
        "conn_ids": as_optional_weights,
        "destination": as_optional_location,
        "storage_conn_id": as_optional_text,
        "concurrency": as_count,
        "timeout": as_seconds,
        "max_attempts": as_count,
        "max_output_attempts": as_count,
        "failure_threshold": as_optional_share,
        "progress_interval": as_seconds,
        "max_tokens_total": as_optional_count,
        "max_cost_usd": as_optional_dollars,
        "fallback_model": as_optional_text,
        "deduplicate": as_optional_flag,
        "adaptive": as_optional_flag,
        "max_outage": as_optional_seconds,
        "max_limit_wait": as_optional_seconds,
        "max_same_rejections": as_optional_count,
    }

    def __init__(
        self,
        *,
        shard: Mapping[str, Any],
        conn_id: str = LLMHook.default_conn_name,
        conn_ids: Mapping[str, int] | Sequence[str] | None = None,
        destination: Any = None,
        storage_conn_id: str | None = None,
        concurrency: int = DEFAULT_CONCURRENCY,
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
        **kwargs: Any,
    ) -> None:
        with naming_task(kwargs):
            kwargs.setdefault("pool_slots", as_count("concurrency", concurrency))
        super().__init__(**kwargs)
        self.shard = shard
        self.conn_id = conn_id
        self.conn_ids = conn_ids
        self.destination = destination
        self.storage_conn_id = storage_conn_id
        self.concurrency = concurrency
        self.timeout = timeout
        self.max_attempts = max_attempts
        self.max_output_attempts = max_output_attempts
        self.failure_threshold = failure_threshold
        self.progress_interval = progress_interval
        self.max_tokens_total = max_tokens_total
        self.max_cost_usd = max_cost_usd
        self.fallback_model = fallback_model
        self.deduplicate = deduplicate
        self.adaptive = adaptive
        self.max_outage = max_outage
        self.max_limit_wait = max_limit_wait
        self.max_same_rejections = max_same_rejections
        with naming_task(kwargs):
            check_known(self._READERS, vars(self), templated=self.template_fields)
            check_one_of_conn_ids(conn_id, conn_ids)

    @classmethod
    def partial(cls, **kwargs: Any) -> OperatorPartial:
        """Prepare the mapped task; see :meth:`airflow.sdk.BaseOperator.partial`.

        :raises LLMInputError: when a given argument is none.
        """
        with naming_task(kwargs):
            check_given(cls._READERS, kwargs, templated=cls.template_fields)
            check_one_of_conn_ids(kwargs.get("conn_id"), kwargs.get("conn_ids"))
        return super().partial(**kwargs)

    def execute(self, context: Context) -> dict[str, Any]:
        """Complete the shard and return its state."""
        with no_hopeless_retries(), coming_back_later(context, cast("logging.Logger", self.log)):
            reference = ShardReference.from_json(self.shard)
            # Airflow 3.1 shows no label while a task runs; the log always does.
            self.log.info("%s", reference.label)
            run = self._start(reference, claimant_of(context))
            with self._asking(context, run):
                try:
                    run.run()
                except BaseException:
                    # Also on a timeout of Airflow, which is no Exception.
                    self._tell_failure(run.state)
                    raise
            return run.state.to_json()

    def _start(self, reference: ShardReference, claimant: Claimant) -> ShardRun:
        from airflow_llm_provider import jobs  # noqa: PLC0415 -- loads pyarrow, which a DAG file need not pay for
        from airflow_llm_provider.dataset.files.layout import PLANS  # noqa: PLC0415 -- as above

        arguments = read_all(self._READERS, vars(self))
        return jobs.ShardRun(
            reference,
            accounts=[hook.get_account(weight=weight) for hook, weight in hooks_of(arguments).items()],
            options=options_of(arguments),
            # A whole URI is right by itself, whatever the template of the destination renders to by now.
            destination=arguments["destination"] if reference.plan.startswith(PLANS) else None,
            resolver=storage_resolver(arguments["storage_conn_id"]),
            claimant=claimant,
            log=cast("logging.Logger", self.log),
        )

    def _tell_failure(self, state: ShardState) -> None:
        self.log.error(
            "The shard %s: rows: %s; errors: %s. Every answer received is kept, the next try asks only for the rest",
            "was interrupted" if state.status == "interrupted" else "did not finish",
            _counts(state.rows_by_status),
            _counts(state.errors),
        )


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items()) or "none"
