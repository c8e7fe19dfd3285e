"""One plan of all groups of input files that were counted and cut each by itself."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from airflow_llm_provider.dataset.drafting.donors import DonorSearch, Findings
from airflow_llm_provider.dataset.drafting.fit import check_fit, enlarged
from airflow_llm_provider.dataset.drafting.packing import Budget, Cut, Packer
from airflow_llm_provider.dataset.outcomes.reuse import forget_answers
from airflow_llm_provider.dataset.plans.partitions import PartitionKeys
from airflow_llm_provider.dataset.plans.plan import Plan, plan_id_of, write_plan
from airflow_llm_provider.dataset.plans.shard_entry import ShardEntry
from airflow_llm_provider.dataset.plans.shards import ShardFile
from airflow_llm_provider.dataset.plans.versions import package_versions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_llm_provider.dataset.drafting.counted import Counted, CountedShard
    from airflow_llm_provider.dataset.drafting.file_groups import Listing
    from airflow_llm_provider.dataset.files.layout import Layout
    from airflow_llm_provider.dataset.sources.selection import Selection


class Join:
    """Shards of all groups, one group after the other.

    A shard never holds rows of two groups. When there would be more shards than allowed, neighbours of one group are
    put together, under the smallest token budget that makes few enough; their rows already lie side by side.

    :param listing: the groups.
    :param counted: what the count of each group found out, in order.
    :raises LLMInputError: when there would be more shards or partitions than allowed.
    """

    def __init__(self, layout: Layout, listing: Listing, counted: Sequence[Counted]) -> None:
        self._layout = layout
        self._listing = listing
        self._counted = counted
        #: Settings as used: with the enlarged budget, if it was.
        self.settings = listing.settings
        #: What a person should know, to be logged once.
        self.notes = list(dict.fromkeys(note for group in counted for note in group.notes))
        self.rows = sum(group.rows for group in counted)
        self.requests = sum(group.requests for group in counted)
        self.tokens = sum(group.tokens for group in counted)
        #: Rows that are not sent, by their status.
        self.rows_by_status: Counter[str] = Counter()
        for group in counted:
            self.rows_by_status.update(group.rows_by_status)
        #: Why the first row that is not sent is not.
        self.first_error = next((g.first_error for g in counted if g.first_error is not None), None)
        partitions = PartitionKeys(self.settings.partition_by)
        for group in counted:
            partitions.add(group.partitions)
        self._cuts = self._fit()
        #: The shards, without what older ones hold for them.
        self.shards = self._name_all()

    def _fit(self) -> list[tuple[Cut, ...]]:
        """Say which neighbours are one shard: for each group, runs of its shards."""
        made = sum(len(group.shards) for group in self._counted)
        asked = sum(group.asked_shards for group in self._counted)
        most = self.settings.max_shards
        if most is None or asked <= most:
            return [
                tuple(Cut(first_row=n, rows=1, tokens=0) for n in range(len(g.shards))) for g in self._counted
            ]
        fitting = self._smallest_budget(most)
        check_fit(
            self.settings,
            rows=self.rows,
            size=sum(group.size for group in self._counted),
            shards=asked,
            fitting=fitting,
            bound=self._listing.bound,
        )
        assert fitting is not None  # noqa: S101 -- what does not fit was refused
        before = self.settings.shard_tokens
        self.settings = dataclasses.replace(self.settings, shard_tokens=fitting)
        cuts = self._pack(fitting)
        self.notes.append(
            enlarged(
                shards=(max(asked, made), sum(map(len, cuts))),
                tokens=(before, fitting),
                most=most,
                bound=self._listing.bound,
            )
        )
        return cuts

    def _smallest_budget(self, most: int) -> int | None:
        low = max(group.shard_tokens for group in self._counted)
        high = max(low, self.tokens)
        if sum(map(len, self._pack(high))) > most:
            return None
        while low < high:
            middle = (low + high) // 2
            if sum(map(len, self._pack(middle))) > most:
                low = middle + 1
            else:
                high = middle
        return low

    def _pack(self, tokens: int) -> list[tuple[Cut, ...]]:
        # What is packed are shards, so the bound on rows is one on a second weight.
        budget = Budget(tokens=tokens, size=self.settings.max_rows)
        cuts = []
        for group in self._counted:
            # Shards of two sorted runs are not put together: the merge holds one run at a time.
            firsts = [shard.first_row for shard in group.shards]
            sorted_runs = self.settings.order_by is not None
            breaks = [n for n in range(1, len(firsts)) if sorted_runs and firsts[n] != firsts[n - 1]]
            packer = Packer(budget, breaks=breaks)
            packer.add(
                np.array([shard.tokens for shard in group.shards], dtype=np.int64),
                np.array([shard.rows for shard in group.shards], dtype=np.int64),
            )
            cuts.append(packer.finish())
        return cuts

    def _name_all(self) -> tuple[ShardEntry, ...]:
        entries: list[ShardEntry] = []
        names: set[str] = set()
        begun = 0
        for group, counted in enumerate(self._counted):
            first_group = 0
            for cut in self._cuts[group]:
                shards = counted.shards[cut.first_row : cut.first_row + cut.rows]
                row_groups = sum(shard.groups for shard in shards)
                name = _unused(_joined(shards), names)
                names.add(name)
                entries.append(
                    ShardEntry(
                        shard_id=name,
                        index=len(entries),
                        rows=sum(shard.rows for shard in shards),
                        tokens=sum(shard.tokens for shard in shards),
                        first_row=begun + shards[0].first_row,
                        sorted=self.settings.order_by is not None,
                        file=self._listing.name(group),
                        row_groups=(first_group, row_groups),
                    )
                )
                first_group += row_groups
            begun += counted.rows
        return tuple(entries)

    @property
    def report(self) -> dict[str, Any]:
        """What was taken of the source, and how much was left out."""
        reading = self._listing.reading
        return {
            "columns": None if reading.columns is None else list(reading.columns),
            "where": reading.where,
            "limit": reading.limit,
            "rows_left_out": sum(group.rows_left_out for group in self._counted),
            "files_skipped": sum(group.files_skipped for group in self._counted),
        }

    @cached_property
    def _findings(self) -> Findings:
        names = [entry.shard_id for entry in self.shards]
        with DonorSearch(self._layout) as search:
            if search.needed:
                for group in range(len(self._counted)):
                    self._search_group(search, self._listing.name(group))
            return search.look(names)

    def _search_group(self, search: DonorSearch, name: str) -> None:
        entries = [entry for entry in self.shards if entry.file == name]
        storage, path = self._layout.storage, self._layout.counted(name)
        with storage.open_parquet(path) as file:
            for entry in entries:
                shard = ShardFile(storage, path, file, entry.row_groups)
                search.add(entry.index, shard.fingerprints())

    @property
    def answered(self) -> int:
        """Rows that will not be sent because their answers are stored under the destination."""
        return self._findings.answered

    def commit(
        self,
        source: Selection,
        *,
        created: str,
        estimate: Mapping[str, Any] | None = None,
        start_over: bool = False,
    ) -> Plan:
        """Write the plan, and return it.

        :param source: what is taken of all the files.
        :param created: ISO time of the split.
        :param estimate: what the run is expected to take, to be kept in the plan.
        :param start_over: forget every stored answer of the destination first, so that all rows are asked again.
        """
        entries = self.shards
        if start_over:
            forget_answers(self._layout)
        else:
            donors = self._findings.donors
            entries = tuple(dataclasses.replace(entry, donors=donors[entry.index]) for entry in entries)
        plan = Plan(
            plan_id=plan_id_of(
                self._listing.spec, source.schema, self.settings, entries, carried=source.carried
            ),
            created=created,
            versions=package_versions(),
            spec=self._listing.spec,
            input_schema=source.schema,
            shards=entries,
            settings=self.settings,
            carried=source.carried,
            selection=self.report,
            source=tuple(source.snapshot()),
            estimate=dict(estimate or {}),
        )
        write_plan(self._layout, plan)
        return plan


def _joined(shards: Sequence[CountedShard]) -> str:
    """Return the id of neighbouring shards that are one: by theirs, which are their content."""
    if len(shards) == 1:
        return shards[0].shard_id
    return _hash(" ".join(shard.shard_id for shard in shards))


def _unused(name: str, names: set[str]) -> str:
    """Return another name when a shard with the same rows has this one: they are asked separately."""
    repeat, found = 0, name
    while found in names:
        repeat += 1
        found = _hash(f"{name} {repeat}")
    return found


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
