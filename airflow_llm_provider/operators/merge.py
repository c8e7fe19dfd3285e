"""The last task: one output of all shards, and a summary of the run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

from airflow.sdk import BaseOperator

from airflow_llm_provider.errors import LLMInputError
from airflow_llm_provider.hooks.compat import AirflowSkipException
from airflow_llm_provider.hooks.storage import storage_resolver
from airflow_llm_provider.links.run_page import RunPageLink
from airflow_llm_provider.operators.arguments import (
    as_optional_count,
    as_optional_share,
    as_optional_text,
    as_text,
    check_known,
    read_all,
)
from airflow_llm_provider.operators.outlets import emit_events
from airflow_llm_provider.operators.owner import claimant_of
from airflow_llm_provider.operators.place import naming_task
from airflow_llm_provider.scheduling.failures import no_hopeless_retries
from airflow_llm_provider.xcom import SUMMARY_KEY

if TYPE_CHECKING:
    import logging

    from airflow.sdk import Context

    from airflow_llm_provider.xcom import RunSummary

#: What a plan renders to when there is none: a dry run, or a split that was skipped.
_NO_PLAN = (None, "", "None")


#: Days for which plans, shards and answers are kept that no run uses, unless the DAG says otherwise.
DEFAULT_KEEP_DAYS = 30


class MergeShardsOperator(BaseOperator):
    """Write one output of all shards of a plan, in input order, and return the run's summary.

    The plan is trusted, not the list of states: a shard that is not finished is named in the error. Every asset among
    ``outlets`` gets an event whose extra is the summary.

    Runs when nothing before it failed and something ran: without rows there are no shards to complete, and still an
    empty output to write. Without a plan, after a dry run, it skips itself and with it what depends on the output.

    :param plan: URI of the plan, :attr:`~airflow_llm_provider.operators.shard.ShardDatasetOperator.plan`.
    :param states: states of the shards, ``complete.output``: what the run cost and reused. They may be missing.
    :param storage_conn_id: connection of the storage, for URLs that name none themselves.
    :param failure_threshold: share of rows without an answer above which the task fails, the output written; ``None``:
        no bound.
    :param keep_days: days after which plans, shards and answers below the destination that no run has used are deleted,
        once the output is in place; ``None``: never.
    """

    template_fields: Sequence[str] = ("plan", "states", "storage_conn_id")
    ui_color = "#fef7e0"
    operator_extra_links = (RunPageLink(),)

    _READERS: ClassVar[Mapping[str, Any]] = {
        "plan": as_text,
        "storage_conn_id": as_optional_text,
        "failure_threshold": as_optional_share,
        "keep_days": as_optional_count,
    }

    def __init__(
        self,
        *,
        plan: Any,
        states: Any = None,
        storage_conn_id: str | None = None,
        failure_threshold: float | None = None,
        keep_days: int | None = DEFAULT_KEEP_DAYS,
        **kwargs: Any,
    ) -> None:
        # Not from the DAG's default_args: any other rule either skips the output of an empty night or merges failures.
        kwargs.setdefault("trigger_rule", "none_failed_min_one_success")
        super().__init__(**kwargs)
        self.plan = plan
        self.states = states
        self.storage_conn_id = storage_conn_id
        self.failure_threshold = failure_threshold
        self.keep_days = keep_days
        with naming_task(kwargs):
            check_known(self._READERS, vars(self), templated=self.template_fields)

    def execute(self, context: Context) -> dict[str, Any]:
        """Merge the shards and return the run's summary."""
        if self.plan in _NO_PLAN:
            raise AirflowSkipException(
                "There is no plan: the split was a dry run or was skipped. Nothing was merged"
            )
        with no_hopeless_retries():
            summary = self._merge(context)
        emit_events(self, context, summary)
        return summary.to_json()

    def _merge(self, context: Context) -> RunSummary:
        from airflow_llm_provider import jobs  # noqa: PLC0415 -- loads pyarrow, which a DAG file need not pay for

        arguments = read_all(self._READERS, vars(self))
        summary = jobs.merge(
            arguments["plan"],
            states=self._states(),
            resolver=storage_resolver(arguments["storage_conn_id"]),
            keep_days=arguments["keep_days"],
            claimant=claimant_of(context),
            log=cast("logging.Logger", self.log),
        )
        if self.do_xcom_push:
            # Before the threshold is looked at: callbacks and people want the numbers of a run that failed most of all.
            context["ti"].xcom_push(SUMMARY_KEY, summary.to_json())
        jobs.check_run(summary, arguments["failure_threshold"])
        return summary

    def _states(self) -> list[Mapping[str, Any]]:
        """Return the states as a list, whether one, several or none came, and whatever XCom made of them."""
        found = self.states
        if found is None or isinstance(found, Mapping):
            found = [] if found is None else [found]
        if not isinstance(found, Iterable) or isinstance(found, (str, bytes)):
            raise LLMInputError(f"states is a {type(found).__name__}: give the output of the complete task")
        # A slice of a lazy sequence is one call to Airflow's API, an iteration is one for each item.
        items = list(found[:] if isinstance(found, Sequence) else found)
        states = [item for item in items if isinstance(item, Mapping)]
        if len(states) < len(items):
            self.log.warning(
                "%d of %d states are no shard states: their requests and cost are missing from the summary, their rows "
                "are not",
                len(items) - len(states),
                len(items),
            )
        return states
