"""A split that is counted and packed: rows in a spool, cut into shards that have their names."""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections import Counter, deque
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from airflow_llm_provider.dataset.arrow.sizes import row_bytes
from airflow_llm_provider.dataset.drafting.donors import DonorSearch, Findings
from airflow_llm_provider.dataset.drafting.fit import check_fit, enlarged
from airflow_llm_provider.dataset.drafting.naming import ShardNames
from airflow_llm_provider.dataset.drafting.packing import Budget, Cut, Packer, Weights, pack, smallest_budget
from airflow_llm_provider.dataset.drafting.spool import RowStream, Spool
from airflow_llm_provider.dataset.outcomes.reuse import forget_answers
from airflow_llm_provider.dataset.plans.checksum import shard_salt
from airflow_llm_provider.dataset.plans.partitions import PartitionKeys, Values
from airflow_llm_provider.dataset.plans.plan import Plan, SplitSettings, plan_id_of, write_plan
from airflow_llm_provider.dataset.plans.shard_entry import ShardEntry
from airflow_llm_provider.dataset.plans.shard_writer import ShardWriter
from airflow_llm_provider.dataset.plans.shards import MESSAGES, SHARD_COLUMNS, shard_arrays
from airflow_llm_provider.dataset.plans.versions import package_versions
from airflow_llm_provider.dataset.plans.window import SortingWindow, tokens_sent
from airflow_llm_provider.dataset.sources.ahead import read_ahead

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import TracebackType

    from airflow_llm_provider.dataset.files.layout import Layout
    from airflow_llm_provider.dataset.plans.prepared import Prepare, PreparedRows, RowSource
    from airflow_llm_provider.spec import CompletionSpec

#: Batches that wait to be counted while the next is read and rendered.
_BATCHES_AHEAD = 1


class Draft:
    """A split that is counted and packed, but not written."""

    def __init__(
        self, *, source: RowSource, spec: CompletionSpec, layout: Layout, settings: SplitSettings, bound: str
    ) -> None:
        self._source = source
        self._spec = spec
        self._layout = layout
        self._bound = bound
        self._messages = (MESSAGES,) if callable(spec.prompt) else ()
        self._schema = pa.schema([*source.schema, *SHARD_COLUMNS, *self._messages])
        self._spool = Spool(self._schema)
        self._weights = Weights()
        self._partitions = PartitionKeys(
            [name for name in settings.partition_by if name in source.schema.names]
        )
        self._begin_names()
        #: Settings as used: with the enlarged budget, if it was.
        self.settings = settings
        #: Rows of the input.
        self.rows = 0
        #: Rows that will be sent.
        self.requests = 0
        #: Rows that are not sent, by their status.
        self.rows_by_status: Counter[str] = Counter()
        #: Why the first row that is not sent is not.
        self.first_error: str | None = None
        self.shards: tuple[Cut, ...] = ()
        #: Shards that there would be under the budget that was asked for.
        self.asked_shards = 0
        #: What a person should know, to be logged once.
        self.notes: list[str] = []

    def _begin_names(self) -> None:
        self._search = DonorSearch(self._layout)
        salt = shard_salt(self._spec, self._source.schema)
        self._names = ShardNames(pa.schema([*self._source.schema, *self._messages]), salt)

    @property
    def tokens(self) -> int:
        """Prompt tokens of the rows that will be sent."""
        return self._weights.tokens

    @property
    def partitions(self) -> list[Values]:
        """Partitions that the columns of the input make."""
        return self._partitions.found

    @property
    def size(self) -> int:
        """Bytes of all rows."""
        return self._weights.size

    @property
    def largest_row_tokens(self) -> int:
        """Prompt tokens of the largest row that will be sent."""
        return self._weights.largest_tokens

    def read(self, prepare: Prepare, batch_rows: int) -> None:
        """Read, count and pack the whole source."""
        packer = Packer(_budget(self.settings), breaks=self._weights.breaks)
        waiting: deque[Future[None]] = deque()
        window = SortingWindow() if self.settings.order_by == "tokens" else None

        def take(batch: pa.RecordBatch, prepared: PreparedRows | Callable[[], PreparedRows]) -> None:
            taken = self._take(batch, prepared() if callable(prepared) else prepared)
            if window is None:
                self._keep(taken, packer)
                return
            window.add(taken)
            if window.full:
                self._end_run(window, packer)

        # One thread: batches are taken in their order. This one reads and renders meanwhile.
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="llm-split") as counting:
            for batch in read_ahead(self._source.batches(batch_rows)):
                if batch.num_rows:
                    waiting.append(counting.submit(take, batch, prepare(batch)))
                if len(waiting) > _BATCHES_AHEAD:
                    waiting.popleft().result()
            for last in waiting:
                last.result()
        if window is not None:
            self._end_run(window, packer)
        self._source.check_unchanged()
        self.shards = packer.finish()
        most = self.settings.max_shards
        if most is not None and len(self.shards) > most:
            self._fit(most)
        else:
            self.asked_shards = len(self.shards)
        self._names.finish(self.shards)

    def _end_run(self, window: SortingWindow, packer: Packer) -> None:
        for batch in window.sorted():
            self._keep(batch, packer)
        self._weights.breaks.append(self._weights.rows)

    def _keep(self, batch: pa.RecordBatch, packer: Packer) -> None:
        """Pack and name rows in the order in which they lie in shards."""
        tokens, sizes = tokens_sent(batch), row_bytes(batch.select(self._source.schema.names))
        self._spool.append(batch)
        self._weights.add(tokens, sizes)
        packer.add(tokens, sizes)
        self._name(batch, packer.closed)

    def _take(self, batch: pa.RecordBatch, prepared: PreparedRows) -> pa.RecordBatch:
        if self.settings.partition_by:
            # Too many are found out here, before anything is paid for.
            self._partitions.numbers(batch)
        arrays = shard_arrays(prepared, self.rows, batch.num_rows)
        taken = pa.RecordBatch.from_arrays([*batch.columns, *arrays], schema=self._schema)
        self.rows += batch.num_rows
        self.requests += batch.num_rows - arrays[2].null_count
        if self.requests < self.rows:
            self.rows_by_status.update(str(status) for status in prepared.statuses if status is not None)
        if self.first_error is None and self.requests < self.rows:
            self.first_error = next((error for error in prepared.errors if error is not None), None)
        return taken

    def _name(self, batch: pa.RecordBatch, cuts: Sequence[Cut]) -> None:
        fingerprints = batch.column("_llm_fingerprint")
        start = 0
        for index, rows in self._names.add(batch, cuts):
            self._search.add(index, fingerprints.slice(start, rows))
            start += rows

    def _fit(self, most: int) -> None:
        count, asked = len(self.shards), self.settings.shard_tokens
        self.asked_shards = count
        fitting = smallest_budget(self._weights, _budget(self.settings), most)
        check_fit(
            self.settings,
            rows=self.rows,
            size=self._weights.size,
            shards=count,
            fitting=fitting,
            bound=self._bound,
        )
        assert fitting is not None  # noqa: S101 -- what does not fit was refused
        self.settings = dataclasses.replace(self.settings, shard_tokens=fitting)
        self.shards = pack(self._weights, _budget(self.settings)) or ()
        self._search.close()
        self._begin_names()
        for batch in self._spool:
            self._name(batch, self.shards)
        self.notes.append(
            enlarged(shards=(count, len(self.shards)), tokens=(asked, fitting), most=most, bound=self._bound)
        )

    def commit(
        self, *, created: str, estimate: Mapping[str, Any] | None = None, start_over: bool = False
    ) -> Plan:
        """Write the shards, then the plan, and return the plan.

        :param created: ISO time of the split.
        :param estimate: what the run is expected to take, to be kept in the plan.
        :param start_over: forget every stored answer of the destination first, so that all rows are asked again.
        """
        if start_over:
            forget_answers(self._layout)
        entries = self._entries(helped=not start_over)
        with ShardWriter(self._layout, self._schema) as writer:
            for entry, pieces in zip(entries, self.pieces(), strict=True):
                writer.write(entry.shard_id, pieces)
        plan = Plan(
            plan_id=plan_id_of(
                self._spec, self._source.schema, self.settings, entries, carried=self._source.carried
            ),
            created=created,
            versions=package_versions(),
            spec=self._spec,
            input_schema=self._source.schema,
            shards=entries,
            settings=self.settings,
            carried=self._source.carried,
            selection=self._source.report,
            source=tuple(self._source.snapshot()),
            estimate=dict(estimate or {}),
        )
        write_plan(self._layout, plan)
        return plan

    @cached_property
    def _findings(self) -> Findings:
        return self._search.look(self._names.names)

    @property
    def answered(self) -> int:
        """Rows that will not be sent because their answers are stored under the destination."""
        return self._findings.answered

    def _entries(self, *, helped: bool) -> tuple[ShardEntry, ...]:
        names = self._names.names
        donors = self._findings.donors if helped else [()] * len(names)
        return tuple(
            ShardEntry(
                shard_id=name,
                index=index,
                rows=cut.rows,
                tokens=cut.tokens,
                first_row=self.first_row(cut),
                sorted=self.settings.order_by is not None,
                donors=donors[index],
            )
            for index, (name, cut) in enumerate(zip(names, self.shards, strict=True))
        )

    @property
    def schema(self) -> pa.Schema:
        """Columns of the input and of the shard."""
        return self._schema

    @property
    def names(self) -> Sequence[str]:
        """Ids of the shards."""
        return self._names.names

    def first_row(self, cut: Cut) -> int:
        """Return the number of a shard's first row, or of the first row of those that it was sorted with."""
        runs = self._weights.breaks
        if self.settings.order_by is None:
            return cut.first_row
        run = bisect_right(runs, cut.first_row)
        return runs[run - 1] if run else 0

    def pieces(self) -> Iterator[Iterator[pa.RecordBatch]]:
        """Yield the rows of each shard, in pieces; each must be used up before the next."""
        rows = RowStream(iter(self._spool))
        for cut in self.shards:
            yield rows.take(cut.rows)

    def close(self) -> None:
        """Let go of the rows."""
        self._spool.close()
        self._weights.close()
        self._search.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _budget(settings: SplitSettings) -> Budget:
    return Budget(tokens=settings.shard_tokens, rows=settings.max_rows, size=settings.max_bytes)
