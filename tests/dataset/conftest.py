"""A whole run below Airflow and without a model, on a local disk and on an object store."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from airflow_llm_provider.dataset.drafting.split import draft_split
from airflow_llm_provider.dataset.files.layout import Layout
from airflow_llm_provider.dataset.merging.merge import merge_shards
from airflow_llm_provider.dataset.merging.output import read_results
from airflow_llm_provider.dataset.outcomes.journal import JournalWriter, remove_journal
from airflow_llm_provider.dataset.outcomes.record import Record, is_answered
from airflow_llm_provider.dataset.outcomes.results import ShardResults
from airflow_llm_provider.dataset.outcomes.reuse import known_answers
from airflow_llm_provider.dataset.plans.plan import Plan, SplitSettings
from airflow_llm_provider.dataset.plans.prepared import PreparedRows
from airflow_llm_provider.dataset.plans.shards import open_shard
from airflow_llm_provider.engine.call import Outcome
from airflow_llm_provider.engine.status import RowStatus
from airflow_llm_provider.engine.usage import Usage
from airflow_llm_provider.jobs.completing.duplicates import copy_of
from airflow_llm_provider.spec import CompletionSpec

if TYPE_CHECKING:
    from airflow_llm_provider.dataset.plans.shard_entry import ShardEntry

#: Characters that URLs, globs, hive folders and shells each treat in their own way.
ODD = "a b#%20[x]=é"


class TableSource:
    """Rows from memory."""

    def __init__(self, table, carried=None):
        self.table = table
        self.schema = table.schema
        self.carried = carried
        self.notes = []
        self.report = {"columns": carried}

    def batches(self, batch_rows):
        yield from self.table.to_batches(max_chunksize=batch_rows)

    def snapshot(self):
        return [{"uri": "memory", "size": self.table.nbytes, "version": "1"}]

    def check_apart(self, layout):
        return None

    def check_unchanged(self):
        return None


def prepare_rows(batch, *, tokens=10, blank=()):
    """Prepare rows whose request is made of all their values."""
    rows = [repr(row) for row in batch.to_pylist()]
    sent = [row not in blank for row in rows]
    return PreparedRows(
        tokens=[tokens] * len(rows),
        fingerprints=[
            hashlib.blake2b(row.encode("utf-8", "surrogatepass"), digest_size=16).digest() if ok else None
            for row, ok in zip(rows, sent, strict=True)
        ],
        statuses=[None if ok else RowStatus.EMPTY_INPUT for ok in sent],
        errors=[None if ok else "blank" for ok in sent],
    )


class KilledError(Exception):
    """Stands for kill -9: nothing after it runs."""


@dataclass
class Workbench:
    """Splits, answers and merges, and counts what was asked."""

    layout: Layout
    spec: CompletionSpec = field(default_factory=lambda: CompletionSpec(model="m", prompt="{{ x }}"))
    asked: list = field(default_factory=list)
    #: Whether identical requests of a shard share one answer.
    alike: bool = False

    def draft(self, table, *, prepare=prepare_rows, batch_rows=7, **settings):
        return draft_split(
            TableSource(table),
            spec=self.spec,
            layout=self.layout,
            settings=SplitSettings(**{"shard_tokens": 50, **settings}),
            prepare=prepare,
            batch_rows=batch_rows,
        )

    def split(self, table, *, start_over=False, **options) -> Plan:
        with self.draft(table, **options) as draft:
            return draft.commit(created="2026-01-01T00:00:00+00:00", start_over=start_over)

    def reply(self, row: dict, index: int) -> Outcome:
        """Answer one row; each answer is another one, as a model's may be."""
        text = f"answer {len(self.asked)}"
        return Outcome(
            index=index,
            status=RowStatus.SUCCESS,
            text=text,
            answer=text,
            model="m-1",
            finish_reason="stop",
            usage=Usage(prompt_tokens=10, completion_tokens=2),
            cost_usd=0.5,
            attempts=1,
            latency_ms=float(len(self.asked)),
            request_id=f"req-{len(self.asked)}",
        )

    def answer(self, entry: ShardEntry, *, reply=None, kill_after: int | None = None) -> list[Outcome]:
        """Run one shard: reuse what is known, ask the rest, write the results."""
        with open_shard(self.layout, entry) as shard:
            keys = shard.keys
            known = known_answers(self.layout, entry, keys)
            rows = list(shard.iter_rows(shard.input_schema.names))
        outcomes = []
        twins = {fingerprint: record.outcome for (fingerprint, _), record in known.answers.items()}
        with JournalWriter(self.layout, entry.shard_id, part_seconds=0) as journal:
            for index, row in enumerate(rows):
                fingerprint = keys.fingerprints[index]
                if fingerprint is None:
                    status = RowStatus(keys.statuses[index])
                    outcomes.append(Outcome(index=index, status=status, message=keys.errors[index]))
                    continue
                key = (fingerprint, keys.occurrences[index])
                if key in known.answers:
                    stored = known.answers[key].outcome
                    answer = stored.text if stored.status is RowStatus.SUCCESS else None
                    outcomes.append(dataclasses.replace(stored, index=index, answer=answer))
                    continue
                if self.alike and fingerprint in twins:
                    outcomes.append(copy_of(twins[fingerprint], index))
                    continue
                if kill_after is not None and len(self.asked) >= kill_after:
                    raise KilledError
                outcome = (reply or self.reply)(row, index)
                self.asked.append(row)
                journal.append(Record(fingerprint, keys.occurrences[index], outcome))
                if is_answered(outcome):
                    twins.setdefault(fingerprint, outcome)
                outcomes.append(outcome)
        ShardResults(spec=self.spec, keys=keys, outcomes=outcomes).write(self.layout, entry.shard_id)
        remove_journal(self.layout, entry.shard_id, (*known.journal.files, *journal.files))
        return outcomes

    def kill(self, entry: ShardEntry, *, after: int) -> None:
        """Run one shard until so many rows were asked altogether, then end like a killed process."""
        with self.killable():
            self.answer(entry, kill_after=after)

    @staticmethod
    def killable():
        """Go on behind the block when the process in it is killed."""
        return contextlib.suppress(KilledError)

    def run(self, table, **options) -> Plan:
        """Split and answer everything."""
        plan = self.split(table, **options)
        for entry in plan.shards:
            self.answer(entry)
        return plan

    def merge(self, plan, **options):
        return merge_shards(self.layout, plan, created="2026-01-01T01:00:00+00:00", **options)

    def output(self, **options):
        return read_results(self.layout.destination, **options)

    def files(self, folder: str = "") -> list[str]:
        storage = self.layout.storage
        below = [name for sub in storage.folders(folder) for name in self.files(sub)]
        return sorted([*storage.files(folder), *below])


@pytest.fixture
def make_workbench(tmp_path):
    """Make workbenches, each in a folder of its own."""
    made = []

    def make(kind="local", **options):
        name = uuid.uuid4().hex
        root = f"{tmp_path}/{name}/{ODD}" if kind == "local" else f"memory://{name}/{ODD}"
        made.append(name)
        return Workbench(Layout(root), **options)

    yield make
    for path in list(MemoryFileSystem.store):
        if path.split("/")[1] in made:
            del MemoryFileSystem.store[path]


@pytest.fixture(params=["local", "memory"])
def workbench(request, make_workbench):
    return make_workbench(request.param)


@pytest.fixture
def bench(make_workbench):
    return make_workbench("local")


@pytest.fixture
def numbers():
    """Make a table of one column of numbers."""
    return lambda values: pa.table({"x": pa.array(values, pa.int64())})
