"""How far a run is: tasks, and rows of finished shards, as Airflow's REST API tells; the others' rows from their journals."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_llm_provider.errors import LLMError
from airflow_llm_provider.xcom import SHARD_STATE_KEY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_llm_provider.dataset.files.layout import Layout
    from airflow_llm_provider.local.rest import AirflowClient, TaskInstance

__all__ = ["Progress", "RunFollower", "describe"]

_ENDED = frozenset({"success", "failed", "upstream_failed", "skipped", "removed"})


@dataclass(frozen=True, kw_only=True)
class Progress:
    """A run at one moment.

    :param step: what is going on, in a few words.
    :param rows: rows of the dataset; None until they are counted.
    :param rows_done: rows that have ended.
    :param rows_answered: those of them with an answer.
    :param shards: shards of the dataset; None until they are planned.
    :param shards_done: finished shards.
    :param tokens: tokens of these rows, prompts and answers.
    :param failed: labels of tasks that failed or wait for a retry.
    """

    step: str
    rows: int | None = None
    rows_done: int = 0
    rows_answered: int = 0
    shards: int | None = None
    shards_done: int = 0
    tokens: int = 0
    failed: tuple[str, ...] = ()


@dataclass
class RunFollower:
    """Turns the states of a run's tasks into progress; each XCom is read once.

    :param client: calls Airflow.
    :param dag_id: the DAG.
    :param run_id: the run.
    :param group_id: id of the `llm_map` group that is followed.
    :param layout: the group's destination, where shards keep their answers; None: only finished shards count.
    """

    client: AirflowClient
    dag_id: str
    run_id: str
    group_id: str
    layout: Layout | None = None
    _shards: list[dict[str, Any]] | None = None
    _states: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)
    _under_way: dict[int, dict[str, Any]] = field(default_factory=dict)

    def look(self) -> Progress:
        """Ask Airflow how far the run is."""
        instances = self.client.task_instances(self.dag_id, self.run_id)
        split = [ti for ti in instances if ti.task_id == f"{self.group_id}.split"]
        complete = [ti for ti in instances if ti.task_id == f"{self.group_id}.complete" and ti.map_index >= 0]
        if self._shards is None and split and split[0].state == "success":
            self._shards = self._xcom(split[0], "return_value") or []
        for ti in complete:
            if ti.state not in _ENDED:
                self._look_into(ti.map_index)
                continue
            self._under_way.pop(ti.map_index, None)
            if (ti.map_index, ti.try_number) not in self._states:
                self._states[ti.map_index, ti.try_number] = self._state(ti)
        states = self._latest() | self._under_way
        return describe(instances, self._shards, list(states.values()), group_id=self.group_id)

    def _look_into(self, index: int) -> None:
        """Count what a shard that is not over has been answered, once there is anything."""
        if self.layout is None or not self._shards:
            return
        # Whoever watches does not get into the way: what cannot be read now is looked at again soon.
        with suppress(LLMError):
            state = _kept(self.layout, self._shards[index]["shard_id"])
            known = self._under_way.get(index, {"rows_by_status": {}})
            # The journal goes when the results are in place.
            if sum(state["rows_by_status"].values()) > sum(known["rows_by_status"].values()):
                self._under_way[index] = state

    def _latest(self) -> dict[int, dict[str, Any]]:
        return {index: state for (index, _), state in sorted(self._states.items())}

    def _state(self, ti: TaskInstance) -> dict[str, Any]:
        key = "return_value" if ti.state == "success" else SHARD_STATE_KEY
        return self._xcom(ti, key) or {}

    def _xcom(self, ti: TaskInstance, key: str) -> Any:
        return self.client.xcom(self.dag_id, self.run_id, ti.task_id, key=key, map_index=ti.map_index)


def _kept(layout: Layout, shard_id: str) -> dict[str, Any]:
    """Return what the journal of a shard says, like the state that the shard returns in the end."""
    from airflow_llm_provider.dataset.outcomes.journal import read_journal  # noqa: PLC0415 - 40 MB

    # A row may have been asked by several tries.
    outcomes = {record.key: record.outcome for record in read_journal(layout, shard_id).records}.values()
    return {
        "rows_by_status": Counter(outcome.status.value for outcome in outcomes),
        "usage": {
            "prompt_tokens": sum(outcome.usage.prompt_tokens for outcome in outcomes),
            "completion_tokens": sum(outcome.usage.completion_tokens for outcome in outcomes),
        },
    }


def describe(
    instances: Sequence[TaskInstance],
    shards: Sequence[dict[str, Any]] | None,
    states: Sequence[dict[str, Any]],
    *,
    group_id: str,
) -> Progress:
    """Compute a run's progress.

    :param instances: all task instances of the run.
    :param shards: shard references from the split, None before it has ended.
    :param states: shard states of shards that are finished, or under way.
    :param group_id: id of the `llm_map` group.
    """
    failed = tuple(_name(ti) for ti in instances if ti.state in {"failed", "up_for_retry"})
    done = [ti for ti in instances if ti.task_id == f"{group_id}.complete" and ti.state in _ENDED]
    rows: Counter[str] = Counter()
    tokens = 0
    for state in states:
        rows.update(
            {
                status: count
                for status, count in state.get("rows_by_status", {}).items()
                if status != "pending"
            }
        )
        usage = state.get("usage", {})
        tokens += usage.get("prompt_tokens", 0) + usage.get("completion_tokens", 0)
    return Progress(
        step=_step(instances, group_id),
        rows=None if shards is None else sum(shard["rows"] for shard in shards),
        rows_done=rows.total(),
        rows_answered=rows["success"],
        shards=None if shards is None else len(shards),
        shards_done=len([ti for ti in done if ti.map_index >= 0]),
        tokens=tokens,
        failed=failed,
    )


def _step(instances: Sequence[TaskInstance], group_id: str) -> str:
    running = [ti for ti in instances if ti.state == "running"]
    asking = [ti for ti in running if ti.task_id == f"{group_id}.complete"]
    if asking:
        return f"asking the model: {len(asking)} shard{'s' if len(asking) > 1 else ''} at once"
    names: dict[str, str] = {
        f"{group_id}.split": "counting tokens and cutting shards",
        f"{group_id}.merge": "merging",
    }
    for ti in running:
        return names.get(ti.task_id, f"running {ti.task_id}")
    if instances and all(ti.state in _ENDED for ti in instances):
        return "done"
    return "waiting for Airflow to start the next task"


def _name(ti: TaskInstance) -> str:
    return ti.task_id if ti.map_index < 0 else f"{ti.task_id} [{ti.label or ti.map_index}]"
