"""The split by many tasks: one lists the input files, each of many counts a group of them, one makes the plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, cast

from airflow.sdk import BaseOperator, XComArg

from airflow_llm_provider.hooks.llm import LLMHook
from airflow_llm_provider.hooks.storage import storage_resolver
from airflow_llm_provider.operators.accounts import check_one_of_conn_ids, hooks_of, pricers_of, spec_of
from airflow_llm_provider.operators.arguments import (
    as_count,
    as_flag,
    as_location,
    as_optional_text,
    as_optional_weights,
    check_given,
    check_known,
    read_all,
)
from airflow_llm_provider.operators.handover import ESTIMATE_KEY, NO_PLAN, push_plan
from airflow_llm_provider.operators.owner import claimant_of
from airflow_llm_provider.operators.place import naming_task
from airflow_llm_provider.operators.shard import ShardDatasetOperator
from airflow_llm_provider.scheduling.failures import no_hopeless_retries
from airflow_llm_provider.xcom import LISTING_KEY, PLAN_KEY, GroupReference

if TYPE_CHECKING:
    import logging
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context
    from airflow.sdk.definitions.mappedoperator import OperatorPartial

    from airflow_llm_provider.jobs.claim import Claimant

#: Bytes of input files that one task counts, unless the DAG says otherwise.
DEFAULT_SPLIT_BYTES = 64 << 20
#: Shows which files a task counts in the grid in place of its index.
MAP_INDEX_TEMPLATE = "{{ task.files['label'] }}"


class ListFilesOperator(ShardDatasetOperator):
    """List the input files of a dataset, and return groups of them for ``.expand()``.

    Columns, settings and connections are checked as by
    :class:`~airflow_llm_provider.operators.shard.ShardDatasetOperator`, which has the same arguments. What was found is
    frozen under the destination, and its id pushed under the XCom key ``listing``. A dry run is done here alone, and
    returns no groups.

    :param split_bytes: most bytes of the files of one group; a larger file is a group of its own.
    """

    template_fields: Sequence[str] = (*ShardDatasetOperator.template_fields, "split_bytes")

    _READERS: ClassVar[Mapping[str, Any]] = {
        **ShardDatasetOperator._READERS,  # noqa: SLF001 -- its own class
        "split_bytes": as_count,
    }

    def __init__(self, *, split_bytes: int | str = DEFAULT_SPLIT_BYTES, **kwargs: Any) -> None:
        # Before the checks of the parent.
        self.split_bytes = split_bytes
        super().__init__(**kwargs)

    @property
    def listing(self) -> XComArg:
        """The list's id, for :class:`PlanShardsOperator`."""
        return XComArg(self, key=LISTING_KEY)

    def execute(self, context: Context) -> list[dict[str, Any]]:
        """List the files and return their groups; none after a dry run."""
        with no_hopeless_retries():
            arguments = read_all(self._READERS, vars(self))
            self._check_pools(context, dry_run=arguments["dry_run"])
            references = () if arguments["dry_run"] else self._list(arguments, claimant_of(context))
            if arguments["dry_run"]:
                estimate = self._split(arguments, claimant_of(context)).estimate
                if self.do_xcom_push:
                    context["ti"].xcom_push(ESTIMATE_KEY, estimate.to_json())
        if self.do_xcom_push:
            context["ti"].xcom_push(LISTING_KEY, references[0].listing if references else NO_PLAN)
        return [reference.to_json() for reference in references]

    def _list(self, arguments: Mapping[str, Any], claimant: Claimant) -> tuple[GroupReference, ...]:
        from airflow_llm_provider import jobs  # noqa: PLC0415 -- loads pyarrow, which a DAG file need not pay for

        spec = spec_of(self.spec, arguments)
        return jobs.list_files(
            spec,
            arguments["source"],
            arguments["destination"],
            options=self._split_options({**arguments, "split_by": "file"}),
            resolver=storage_resolver(arguments["storage_conn_id"]),
            pricer=self._pricer(arguments, spec),
            claimant=claimant,
            log=cast("logging.Logger", self.log),
        )


class CountFilesOperator(BaseOperator):
    """Read one group of input files, render and count their rows, and cut them into shards.

    Use it mapped, ``CountFilesOperator.partial(task_id=..., destination=...).expand(files=list_files.output)``. What is
    asked, and how rows are cut, is what the listing has frozen. Nothing is sent to the model. A file that is another
    one than was listed fails the task.

    :param files: a group from :class:`ListFilesOperator`.
    :param destination: folder of the output, the one that the listing task was given.
    :param storage_conn_id: connection of the storage, for URLs that name none themselves.
    """

    template_fields: Sequence[str] = ("destination", "storage_conn_id")
    ui_color = "#e8f0fe"

    _READERS: ClassVar[Mapping[str, Any]] = {"destination": as_location, "storage_conn_id": as_optional_text}

    def __init__(
        self,
        *,
        files: Mapping[str, Any],
        destination: Any,
        storage_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.files = files
        self.destination = destination
        self.storage_conn_id = storage_conn_id
        with naming_task(kwargs):
            check_known(self._READERS, vars(self), templated=self.template_fields)

    @classmethod
    def partial(cls, **kwargs: Any) -> OperatorPartial:
        """Prepare the mapped task; see :meth:`airflow.sdk.BaseOperator.partial`."""
        with naming_task(kwargs):
            check_given(cls._READERS, kwargs, templated=cls.template_fields)
        kwargs.setdefault("map_index_template", MAP_INDEX_TEMPLATE)
        return super().partial(**kwargs)

    def execute(self, context: Context) -> dict[str, Any]:
        """Count the files and return what they hold."""
        from airflow_llm_provider import jobs  # noqa: PLC0415 -- loads pyarrow, which a DAG file need not pay for

        del context
        with no_hopeless_retries():
            arguments = read_all(self._READERS, vars(self))
            reference = GroupReference.from_json(self.files)
            self.log.info("%s", reference.label)
            counted = jobs.count_files(
                reference,
                arguments["destination"],
                resolver=storage_resolver(arguments["storage_conn_id"]),
                log=cast("logging.Logger", self.log),
            )
        return {
            "index": reference.index,
            "rows": counted.rows,
            "requests": counted.requests,
            "tokens": counted.tokens,
            "shards": len(counted.shards),
        }


class PlanShardsOperator(BaseOperator):
    """Make one plan of all groups of input files, and return one small reference per shard for ``.expand()``.

    Let it run after every counting task: ``count >> plan``. Like
    :class:`~airflow_llm_provider.operators.shard.ShardDatasetOperator` it pushes ``plan`` and ``estimate``, and fails when
    there would be too many shards.

    :param listing: id of the list, :attr:`ListFilesOperator.listing`. Without one, after a dry run, there is no plan.
    :param destination: folder of the output, the one that the listing task was given.
    :param conn_id: connection of the model, whose prices go into the estimate; ``None``: list prices.
    :param conn_ids: several connections instead: a list, or weights by connection id.
    :param storage_conn_id: connection of the storage, for URLs that name none themselves.
    :param start_over: forget earlier answers of this destination, and pay for all rows again.
    """

    template_fields: Sequence[str] = (
        "listing",
        "destination",
        "conn_id",
        "conn_ids",
        "storage_conn_id",
        "start_over",
    )
    ui_color = "#e8f0fe"

    _READERS: ClassVar[Mapping[str, Any]] = {
        "listing": as_optional_text,
        "destination": as_location,
        "conn_id": as_optional_text,
        "conn_ids": as_optional_weights,
        "storage_conn_id": as_optional_text,
        "start_over": as_flag,
    }

    def __init__(
        self,
        *,
        listing: Any,
        destination: Any,
        conn_id: str | None = LLMHook.default_conn_name,
        conn_ids: Mapping[str, int] | Sequence[str] | None = None,
        storage_conn_id: str | None = None,
        start_over: bool | str = False,
        **kwargs: Any,
    ) -> None:
        # Not from the DAG's default_args: after a dry run no counting task has run, and there is still an end to be told.
        kwargs.setdefault("trigger_rule", "none_failed_min_one_success")
        super().__init__(**kwargs)
        self.listing = listing
        self.destination = destination
        self.conn_id = conn_id
        self.conn_ids = conn_ids
        self.storage_conn_id = storage_conn_id
        self.start_over = start_over
        with naming_task(kwargs):
            check_known(self._READERS, vars(self), templated=self.template_fields)
            check_one_of_conn_ids(conn_id, conn_ids)

    @property
    def plan(self) -> XComArg:
        """The plan's URI, for :class:`~airflow_llm_provider.operators.merge.MergeShardsOperator`."""
        return XComArg(self, key=PLAN_KEY)

    def execute(self, context: Context) -> list[dict[str, Any]]:
        """Plan the shards and return their references; none after a dry run."""
        from airflow_llm_provider import jobs  # noqa: PLC0415 -- loads pyarrow, which a DAG file need not pay for

        with no_hopeless_retries():
            arguments = read_all(self._READERS, vars(self))
            if arguments["listing"] is None:
                self.log.info("No files were listed to be counted, as in a dry run: there is no plan.")
                if self.do_xcom_push:
                    context["ti"].xcom_push(PLAN_KEY, NO_PLAN)
                return []
            result = jobs.plan_shards(
                arguments["listing"],
                arguments["destination"],
                start_over=arguments["start_over"],
                resolver=storage_resolver(arguments["storage_conn_id"]),
                pricers=pricers_of(hooks_of(arguments)),
                claimant=claimant_of(context),
                log=cast("logging.Logger", self.log),
            )
        push_plan(self, context, result)
        return [reference.to_json() for reference in result.references]
