"""A destination with every shard finished, made without asking anybody: for what comes after the answers."""
# ruff: noqa: RUF001 -- Chinese has its own punctuation

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_llm_provider import CompletionSpec
from airflow_llm_provider.dataset.arrow.row_groups import RowGroupWriter
from airflow_llm_provider.dataset.drafting.split import draft_split
from airflow_llm_provider.dataset.files.layout import Layout
from airflow_llm_provider.dataset.outcomes.columns import OutputColumns
from airflow_llm_provider.dataset.outcomes.results import results_schema
from airflow_llm_provider.dataset.plans.plan import Plan, SplitSettings
from airflow_llm_provider.dataset.plans.prepared import PreparedRows
from airflow_llm_provider.dataset.sources.selection import Selection
from airflow_llm_provider.dataset.sources.source import open_source

if TYPE_CHECKING:
    from collections.abc import Sequence

SPEC = CompletionSpec(model="gpt-4o-mini", prompt="{{ text }}", max_output_tokens=16, temperature=0)
SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
_TOKENS = 20
_WRITE_ROWS = 100_000
_GROUP_ROWS = 1 << 17
_TAILS = pa.array(
    [
        "the parcel never arrived, please send it again",
        "payment was taken twice, refund one of them",
        "快递没有收到，请尽快处理",
        "how do I change my password",
        "发票税号错误 and the invoice is late",
        "everything fine, thank you very much",
        "屏幕损坏，要求退款",
    ]
)


def short_rows(start: int, stop: int) -> pa.RecordBatch:
    """Make rows of some 40 characters, all different."""
    ids = pa.array(np.arange(start, stop, dtype=np.int64))
    tails = _TAILS.take(pa.array(np.arange(start, stop) % len(_TAILS)))
    text = pc.binary_join_element_wise(pc.cast(ids, pa.string()), tails, " ")
    return pa.RecordBatch.from_arrays([ids, text], schema=SCHEMA)


def write_source(path: str, rows: int) -> None:
    """Write so many short rows as one Parquet file."""
    with pq.ParquetWriter(path, SCHEMA, compression="zstd") as writer:
        for start in range(0, rows, _WRITE_ROWS):
            writer.write_batch(short_rows(start, min(start + _WRITE_ROWS, rows)))


def finish(destination: str, *, rows: int, rows_per_shard: int) -> Plan:
    """Write plan, shards and results of a job in which every row succeeded."""
    source = f"{destination}-source.parquet"
    write_source(source, rows)
    layout = Layout(destination)
    settings = SplitSettings(shard_tokens=10**12, max_rows=rows_per_shard)
    with draft_split(
        Selection(open_source(source)), spec=SPEC, layout=layout, settings=settings, prepare=_prepared
    ) as draft:
        plan = draft.commit(created="2025-01-01T00:00:00+00:00")
    for entry in plan.shards:
        _write_results(layout, entry.shard_id)
    return plan


def _prepared(batch: pa.RecordBatch) -> PreparedRows:
    rows = batch.num_rows
    return PreparedRows(
        tokens=[_TOKENS] * rows,
        fingerprints=[
            hashlib.blake2b(text.encode(), digest_size=16).digest() for text in batch[1].to_pylist()
        ],
        statuses=[None] * rows,
        errors=[None] * rows,
    )


def _write_results(layout: Layout, shard_id: str) -> None:
    """Write what a shard's results would be, column by column rather than answer by answer."""
    columns = OutputColumns(SPEC)
    schema = results_schema(columns, SPEC)
    prefix = SPEC.metadata_prefix
    with layout.storage.open_parquet(layout.shard(shard_id)) as shard:
        table = shard.read(columns=["id", "text", "_llm_fingerprint"])
    rows = len(table)
    constants = {
        f"{prefix}status": "success",
        f"{prefix}model": SPEC.model,
        f"{prefix}finish_reason": "stop",
        f"{prefix}prompt_tokens": _TOKENS,
        f"{prefix}completion_tokens": 3,
        f"{prefix}cached_tokens": 0,
        f"{prefix}cost_usd": 0.0000048,
        f"{prefix}attempts": 1,
        "_llm_occurrence": 0,
        "_llm_answered": True,
    }
    values = {
        "_llm_fingerprint": table["_llm_fingerprint"],
        SPEC.output_column: pc.utf8_slice_codeunits(table["text"], 0, 16),
        f"{prefix}latency_ms": pc.add(pc.multiply(pc.cast(table["id"], pa.float64()), 1e-3), 50.0),
        f"{prefix}request_id": pc.binary_join_element_wise("req", pc.cast(table["id"], pa.string()), "_"),
    }
    arrays = [
        pc.cast(values[field.name], field.type).combine_chunks()
        if field.name in values
        else pa.repeat(pa.scalar(constants.get(field.name), field.type), rows)
        for field in schema
    ]
    with layout.storage.create(layout.results(shard_id)) as file, RowGroupWriter(file, schema) as writer:
        for batch in pa.Table.from_arrays(arrays, schema=schema).to_batches():
            writer.write(batch)


def copy(destination: str, target: str) -> None:
    """Copy every shard and every results file into one file each, once, in row groups of a good size."""
    layout = Layout(destination)
    plan = json.loads((layout.storage.read_bytes(_only_plan(layout))) or b"")
    for number, name_of in enumerate((layout.shard, layout.results)):
        names = [layout.storage.path(name_of(entry["shard_id"])) for entry in plan["shards"]]
        _copy(names, f"{target}-{number}.parquet")


def _copy(names: Sequence[str], target: str) -> None:
    gathered: list[pa.Table] = []
    with pq.ParquetWriter(target, pq.read_schema(names[0]), compression="zstd") as writer:
        for name in names:
            with pq.ParquetFile(name) as file:
                gathered.append(file.read())
            if sum(map(len, gathered)) >= _GROUP_ROWS or name == names[-1]:
                table = pa.concat_tables(gathered)
                writer.write_table(table, row_group_size=len(table))
                gathered = []


def _only_plan(layout: Layout) -> str:
    (name,) = layout.storage.files("_llm/plans")
    return name
