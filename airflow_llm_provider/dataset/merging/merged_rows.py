"""The rows of a plan with their answers, shard after shard, checked against the plan."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_llm_provider.dataset.files.storage import BrokenFileError
from airflow_llm_provider.dataset.outcomes.columns import OutputColumns
from airflow_llm_provider.dataset.outcomes.results import read_results_file
from airflow_llm_provider.dataset.plans.shards import open_shard
from airflow_llm_provider.dataset.plans.window import in_order
from airflow_llm_provider.engine.usage import Usage
from airflow_llm_provider.errors import LLMStateError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_llm_provider.dataset.files.layout import Layout
    from airflow_llm_provider.dataset.plans.plan import Plan
    from airflow_llm_provider.dataset.plans.shard_entry import ShardEntry

_USAGE = ("prompt_tokens", "completion_tokens", "cached_tokens")


class MergedRows:
    """The rows of a plan with their answers and the model's words, in the order of the input.

    :param plan: its shards are all finished.
    """

    def __init__(self, layout: Layout, plan: Plan) -> None:
        self._layout = layout
        self._plan = plan
        self._columns = OutputColumns(plan.spec)
        #: Columns of the output, then the model's words.
        self.schema: pa.Schema = self._columns.rejects_schema(plan.carried_schema)
        #: Rows by their status, of the shards so far.
        self.rows_by_status: Counter[str] = Counter()
        #: US dollars for their answers; ``None``: some of it is unknown.
        self.cost_usd: float | None = 0.0
        self._usage: Counter[str] = Counter()

    @property
    def usage(self) -> Usage:
        """Tokens that their answers were billed."""
        return Usage(**{name: self._usage[name] for name in _USAGE})

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows.

        :raises LLMStateError: when a shard is not what the plan says.
        """
        if self._plan.settings.order_by is None:
            for entry in self._plan.shards:
                yield from self._of_shard(entry)
            return
        for _, entries in groupby(self._plan.shards, key=attrgetter("first_row")):
            yield from self._of_run(list(entries))

    def _of_run(self, entries: list[ShardEntry]) -> list[pa.RecordBatch]:
        """Return the rows of shards that were cut from one sorted run, back in their order."""
        batches: list[pa.RecordBatch] = []
        numbers = []
        for entry in entries:
            batches.extend(self._of_shard(entry))
            with open_shard(self._layout, entry) as shard:
                numbers.append(shard.row_numbers())
        return in_order(batches, np.concatenate(numbers))

    def _of_shard(self, entry: ShardEntry) -> Iterator[pa.RecordBatch]:
        results = self._results(entry)
        self._count(results)
        rows = 0
        with open_shard(self._layout, entry) as shard:
            self._check_shard(entry, shard.fingerprints(), results)
            for batch in shard.batches(columns=self._plan.carried):
                start = 0
                # Sliced, never copied together: one array holds no more than two gigabytes of text.
                for answers in results.slice(rows, batch.num_rows).to_batches():
                    yield self._joined(batch.slice(start, answers.num_rows), answers)
                    start += answers.num_rows
                rows += batch.num_rows

    def _results(self, entry: ShardEntry) -> pa.Table:
        try:
            results = read_results_file(self._layout, entry.shard_id)
        except BrokenFileError as error:
            raise LLMStateError(
                f"the results of shard {entry.index} are damaged ({error}): run its complete task again, which asks only "
                "the rows whose answers are lost"
            ) from error
        if results is None:
            raise LLMStateError(
                f"the results of shard {entry.index} ({entry.shard_id}) are gone: run its complete task"
            )
        return results

    def _check_shard(self, entry: ShardEntry, fingerprints: pa.ChunkedArray, results: pa.Table) -> None:
        if not len(fingerprints) == entry.rows == results.num_rows:
            raise LLMStateError(
                f"shard {entry.index} ({entry.shard_id}) has {entry.rows} rows in the plan, {len(fingerprints)} in its "
                f"file and {results.num_rows} in its results: clear the split and everything after it"
            )
        if not results.column("_llm_fingerprint").equals(fingerprints):
            raise LLMStateError(
                f"the results of shard {entry.index} ({entry.shard_id}) belong to other rows: run its complete task again"
            )

    def _joined(self, rows: pa.RecordBatch, answers: pa.RecordBatch) -> pa.RecordBatch:
        names = [field.name for field in (*self._columns.answer, *self._columns.metadata)]
        columns = [*rows.columns, *(answers.column(name) for name in (*names, "_llm_text"))]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _count(self, results: pa.Table) -> None:
        for pair in pc.value_counts(results.column(self._columns.metadata_name("status"))).to_pylist():
            self.rows_by_status[pair["values"]] += pair["counts"]
        for name in _USAGE:
            self._usage[name] += pc.sum(results.column(self._columns.metadata_name(name))).as_py() or 0
        asked = pc.greater(results.column(self._columns.metadata_name("attempts")), 0)
        costs = results.column(self._columns.metadata_name("cost_usd")).filter(asked)
        known = self.cost_usd is not None and not costs.null_count
        self.cost_usd = (self.cost_usd or 0.0) + (pc.sum(costs).as_py() or 0.0) if known else None
