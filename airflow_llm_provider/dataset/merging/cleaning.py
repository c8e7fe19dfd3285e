"""Plans, shards and answers that no run has used for long."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_llm_provider.dataset.files.layout import COUNTED, JOURNALS, LISTINGS, PLANS, RESULTS, SHARDS
from airflow_llm_provider.dataset.plans.plan import Plan, read_plan
from airflow_llm_provider.errors import LLMError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_llm_provider.dataset.files.layout import Layout
    from airflow_llm_provider.dataset.files.storage import FileEntry


@dataclass(frozen=True, kw_only=True)
class Cleaned:
    """What was deleted.

    :param plans: plans, and lists of input files.
    :param shards: files with rows of the input.
    :param answers: files with answers.
    :param size: bytes of all of them.
    """

    plans: int = 0
    shards: int = 0
    answers: int = 0
    size: int = 0


def clean(layout: Layout, current: Plan, *, before: float) -> Cleaned:
    """Delete what no plan that is still in use refers to, and nobody has written since ``before``.

    In use are the current plan, plans that were written since, and plans of which something was answered since. A split
    that finds its plan there writes it anew, so what runs every night stays in use. Answers to requests of plans that are
    deleted go with them.

    :param current: the plan whose output was written; nothing that it refers to is deleted.
    :param before: seconds since 1970.
    :raises LLMStateError: when the storage cannot be read or written, or a plan that is in use cannot be read: what it
        refers to is not known.
    """
    cleaning = _Cleaning(layout, current, before)
    cleaning.find_plans()
    return cleaning.delete()


class _Cleaning:
    def __init__(self, layout: Layout, current: Plan, before: float) -> None:
        self._layout = layout
        self._current = current
        self._before = before
        self._shards: set[str] = set()
        self._donors: set[str] = set()
        self._files: set[str] = set()
        self._use(current)
        # It is finished: what others could give it, it has taken.
        self._donors.clear()
        self._results = layout.storage.entries(RESULTS)
        self._journals = {
            _id(folder): layout.storage.entries(folder) for folder in layout.storage.folders(JOURNALS)
        }
        self._old_plans: list[FileEntry] = []

    def _is_old(self, entry: FileEntry) -> bool:
        return entry.modified < self._before

    def _use(self, plan: Plan) -> None:
        for entry in plan.shards:
            self._shards.add(entry.shard_id)
            self._donors.update(entry.donors)
            if entry.file is not None:
                self._files.add(entry.file)

    def find_plans(self) -> None:
        """Find out which plans are in use, and what they refer to."""
        old: list[tuple[FileEntry, Plan | None]] = []
        for entry in self._layout.storage.entries(PLANS):
            plan_id = _id(entry.name)
            if plan_id == self._current.plan_id or not entry.name.endswith(".json"):
                # What a killed split left, and was not to be read before it had its name, goes with the sweep.
                continue
            if self._is_old(entry):
                old.append((entry, self._old_plan(plan_id)))
            else:
                self._use(read_plan(self._layout, plan_id))
        # What a plan in use has written says nothing about an older one that shares its shards.
        active = self._written_since() - self._shards
        for entry, plan in old:
            if plan is not None and any(shard.shard_id in active for shard in plan.shards):
                self._use(plan)
            else:
                self._old_plans.append(entry)

    def _old_plan(self, plan_id: str) -> Plan | None:
        data = self._layout.storage.read_bytes(self._layout.plan(plan_id))
        try:
            return None if data is None else Plan.from_json(json.loads(data))
        except (LLMError, ValueError, TypeError, KeyError, pa.ArrowException):
            # Damaged or of another version, and as old: nobody can run it.
            return None

    def _written_since(self) -> set[str]:
        finished = {_id(entry.name) for entry in self._results if not self._is_old(entry)}
        begun = {name for name, files in self._journals.items() if not all(map(self._is_old, files))}
        return finished | begun

    def delete(self) -> Cleaned:
        """Delete plans first: whatever happens then, none of those left lacks anything."""
        listings = {name.rpartition("-")[0] for name in self._files}
        lists = self._unused(LISTINGS, listings)
        plans = self._delete([*self._old_plans, *lists])
        rows = self._delete([*self._unused(SHARDS, self._shards), *self._unused(COUNTED, self._files)])
        answering = self._shards | self._donors
        results = [e for e in self._results if self._is_old(e) and _id(e.name) not in answering]
        answers = self._delete(results)
        for name, files in self._journals.items():
            if name not in answering and all(map(self._is_old, files)):
                answers += self._delete(files)
                self._layout.storage.remove_folder(self._layout.journal(name))
        return Cleaned(
            plans=len(plans),
            shards=len([entry for entry in rows if entry.name.endswith(".parquet")]),
            answers=len(answers),
            size=sum(entry.size for entry in (*plans, *rows, *answers)),
        )

    def _unused(self, folder: str, used: set[str]) -> list[FileEntry]:
        entries = self._layout.storage.entries(folder)
        return [entry for entry in entries if self._is_old(entry) and _id(entry.name) not in used]

    def _delete(self, entries: Iterable[FileEntry]) -> list[FileEntry]:
        deleted = list(entries)
        for entry in deleted:
            self._layout.storage.delete(entry.name)
        return deleted


def _id(name: str) -> str:
    return name.rsplit("/", 1)[-1].removesuffix(".json").removesuffix(".parquet")
