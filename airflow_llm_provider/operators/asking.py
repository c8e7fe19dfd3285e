"""What the operators that ask the model have in common: how they are mapped, ended from outside, and leave their state."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_llm_provider.operators.arguments import as_count
from airflow_llm_provider.xcom import SHARD_STATE_KEY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow.sdk import Context
    from airflow.sdk.definitions.mappedoperator import OperatorPartial

    from airflow_llm_provider.jobs import CompleteOptions, ShardRun, ShardSeries

__all__ = ["DEFAULT_CONCURRENCY", "OPTIONS", "AsksModel", "options_of"]

#: Requests in flight of one shard, unless the DAG says otherwise.
DEFAULT_CONCURRENCY = 16
#: Arguments that are options of the job under the same name.
OPTIONS = frozenset(
    {
        "adaptive",
        "concurrency",
        "deduplicate",
        "failure_threshold",
        "fallback_model",
        "max_attempts",
        "max_cost_usd",
        "max_limit_wait",
        "max_outage",
        "max_output_attempts",
        "max_same_rejections",
        "max_tokens_total",
        "progress_interval",
        "timeout",
    }
)
#: Loggers of HTTP libraries, which write a line for every request.
_CHATTY_LOGGERS = ("httpx", "httpx2")


class AsksModel:
    """Goes before the operator among the bases of a class."""

    #: What the grid shows of an instance in place of its index.
    map_index_label: ClassVar[str]

    _job: ShardRun | ShardSeries | None = None
    _kill_reason: str | None = None

    @classmethod
    def partial(cls, **kwargs: Any) -> OperatorPartial:
        """Prepare the mapped task; see :meth:`airflow.sdk.BaseOperator.partial`.

        The scheduler never runs ``__init__`` of a mapped operator, so what it must know is set here.
        """
        concurrency = as_count("concurrency", kwargs.get("concurrency", DEFAULT_CONCURRENCY))
        kwargs.setdefault("pool_slots", concurrency)
        kwargs.setdefault("map_index_template", cls.map_index_label)
        prepared: OperatorPartial = super().partial(**kwargs)  # type: ignore[misc]
        return prepared

    def on_kill(self) -> None:
        """Stop asking; answers received so far are kept. Called from a signal handler."""
        self._kill_reason = "Airflow ended the task"
        if self._job is not None:
            self._job.stop(self._kill_reason)

    @contextmanager
    def _asking(self, context: Context, job: ShardRun | ShardSeries) -> Iterator[None]:
        """Let ``on_kill`` stop the job, and push the state of its shard however it ends."""
        _quiet_chatty_loggers()
        self._job = job
        if self._kill_reason is not None:
            job.stop(self._kill_reason)
        try:
            yield
        finally:
            self._push_state(context, job)

    def _push_state(self: Any, context: Context, job: ShardRun | ShardSeries) -> None:
        """Leave the state for UI and monitors; how the shard ended matters more than failing to do so."""
        state = job.state
        if not self.do_xcom_push or state is None:
            return
        try:
            context["ti"].xcom_push(SHARD_STATE_KEY, state.to_json())
        except Exception as error:  # noqa: BLE001 -- a cleared task may push no more, in whatever way it is told
            self.log.warning("The shard's state could not be pushed to XCom: %s", error)


def options_of(arguments: Mapping[str, Any]) -> CompleteOptions:
    """Return the options of the job.

    :param arguments: of the operator, as they were read.
    """
    from airflow_llm_provider.jobs import CompleteOptions  # noqa: PLC0415 -- loads pyarrow, which a DAG file need not

    return CompleteOptions(**{name: value for name, value in arguments.items() if name in OPTIONS})


def _quiet_chatty_loggers() -> None:
    """Keep a task's log readable, unless somebody has set these levels on purpose."""
    for name in _CHATTY_LOGGERS:
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.WARNING)
