"""What a split hands over to the tasks after it, besides the references of its shards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_llm_provider.xcom import PLAN_KEY

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context

    from airflow_llm_provider.jobs import SplitResult

#: XCom key of the estimate: rows, shards, tokens and dollars, also after a dry run.
ESTIMATE_KEY = "estimate"
#: What stands under the plan's XCom key after a dry run: XCom cannot tell null from absent.
NO_PLAN = ""


def push_plan(operator: BaseOperator, context: Context, result: SplitResult) -> None:
    """Push the estimate and the plan's URI, unless the task pushes nothing."""
    if operator.do_xcom_push:
        context["ti"].xcom_push(ESTIMATE_KEY, result.estimate.to_json())
        context["ti"].xcom_push(PLAN_KEY, result.plan_uri or NO_PLAN)
