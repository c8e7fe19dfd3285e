"""From finished shards to the output: in plan order, with one schema, every row exactly once."""

from __future__ import annotations

import dataclasses
import datetime as dt
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from airflow_llm_provider.dataset.arrow.row_groups import RowGroupWriter
from airflow_llm_provider.dataset.arrow.schemas import encode_schema
from airflow_llm_provider.dataset.files.destination import check_destination
from airflow_llm_provider.dataset.files.layout import MANIFEST, REJECTS, RESULTS, Layout
from airflow_llm_provider.dataset.merging.merged_rows import MergedRows
from airflow_llm_provider.dataset.merging.output_rows import OutputRows, files_schema
from airflow_llm_provider.dataset.merging.part_files import PartFile, PartWriter
from airflow_llm_provider.dataset.merging.sweep import sweep
from airflow_llm_provider.dataset.outcomes.columns import OutputColumns
from airflow_llm_provider.engine.status import RowStatus
from airflow_llm_provider.errors import LLMStateError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_llm_provider.dataset.plans.plan import Plan
    from airflow_llm_provider.engine.usage import Usage

#: Version of the manifest.
MANIFEST_VERSION = 1
_MOST_NAMED = 5


@dataclass(frozen=True, kw_only=True)
class MergeReport:
    """What the output holds.

    :param rows_by_status: rows by row status; sums to ``rows``.
    :param usage: tokens that the answers in the output were billed, whenever that was.
    :param cost_usd: US dollars for them; ``None``: some of it is unknown.
    :param files: URIs of the output files, in row order.
    :param rejects: URI of the file of rows without an answer; ``None``: every row has one.
    :param manifest: URI of the manifest.
    """

    rows: int
    rows_by_status: Mapping[str, int]
    usage: Usage
    cost_usd: float | None
    files: tuple[str, ...]
    rejects: str | None
    manifest: str


def merge_shards(
    layout: Layout,
    plan: Plan,
    *,
    created: str,
    extra: Mapping[str, Any] | None = None,
    rows_per_group: int = 1 << 17,
    bytes_per_file: int = 256 << 20,
) -> MergeReport:
    """Write the output of a plan whose shards are all finished, in the place of the previous output.

    Nothing of the previous output is touched before the new one is complete. Afterwards, what killed merges and killed
    writers left behind more than a day ago is removed.

    :param created: ISO time of the merge.
    :param extra: more of what the manifest should hold.
    :param rows_per_group: most rows of a row group.
    :param bytes_per_file: size on storage beyond which the next file begins.
    :raises LLMStateError: when shards are not finished, do not hold what the plan says, or another merge has begun to
        replace the output.
    :raises LLMInputError: when the destination holds Parquet files of someone else, or the answers make too many
        partitions.
    """
    check_destination(layout)
    _check_finished(layout, plan)
    merge = _Merge(layout, plan, rows_per_group=rows_per_group, bytes_per_file=bytes_per_file)
    report = merge.run(created, extra or {})
    sweep(layout, dt.datetime.fromisoformat(created).timestamp())
    return report


def _check_finished(layout: Layout, plan: Plan) -> None:
    finished = set(layout.storage.files(RESULTS))
    missing = [entry for entry in plan.shards if layout.results(entry.shard_id) not in finished]
    if missing:
        named = ", ".join(f"{entry.index} ({entry.shard_id})" for entry in missing[:_MOST_NAMED])
        more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
        raise LLMStateError(
            f"{len(missing)} of {len(plan.shards)} shards are not finished: {named}{more}; run their complete tasks, then "
            "this again. The previous output is untouched"
        )


class _Merge:
    def __init__(self, layout: Layout, plan: Plan, *, rows_per_group: int, bytes_per_file: int) -> None:
        self._layout = layout
        self._plan = plan
        self._columns = OutputColumns(plan.spec)
        self._schema = self._columns.output_schema(plan.carried_schema)
        self._rejects_schema = self._columns.rejects_schema(plan.carried_schema)
        self._parts = PartWriter(
            layout,
            files_schema(self._schema, plan.settings.partition_by if plan.rows else ()),
            rows_per_group=rows_per_group,
            bytes_per_file=bytes_per_file,
        )
        self._rows = MergedRows(layout, plan)
        self._output = OutputRows(self._parts, self._schema, plan.settings.partition_by)
        self._rejects: RowGroupWriter | None = None
        self._files = ExitStack()

    def run(self, created: str, extra: Mapping[str, Any]) -> MergeReport:
        try:
            with self._files:
                for batch in self._rows:
                    self._write(batch)
            parts = self._output.finish()
            self._check_rows(parts)
            self._parts.publish(self._parts.rejects_name() if self._rejects is not None else None)
        finally:
            self._output.close()
            self._parts.discard()
        report = self._report(parts)
        manifest = _manifest(self._plan, report, parts, created, self._schema) | dict(extra)
        self._parts.seal(orjson.dumps(manifest, option=orjson.OPT_INDENT_2))
        return report

    def _write(self, batch: pa.RecordBatch) -> None:
        """Take rows with the model's words, the last column, which only the rejects have."""
        self._output.write(batch.select(self._schema.names))
        rejected = pc.not_equal(batch.column(self._columns.metadata_name("status")), RowStatus.SUCCESS.value)
        if pc.any(rejected).as_py():
            self._reject(batch.filter(rejected))

    def _reject(self, batch: pa.RecordBatch) -> None:
        if self._rejects is None:
            staged = self._layout.storage.create(self._parts.rejects_name(), staged=True)
            file = self._files.enter_context(staged)
            self._rejects = self._files.enter_context(RowGroupWriter(file, self._rejects_schema))
        self._rejects.write(batch)

    def _check_rows(self, parts: tuple[PartFile, ...]) -> None:
        written = sum(part.rows for part in parts)
        counted = self._rows.rows_by_status.total()
        if not written == counted == self._plan.rows:
            raise LLMStateError(
                f"the plan has {self._plan.rows} rows, the results {counted} and the output {written}: clear the split and "
                "everything after it. The previous output is untouched"
            )

    def _report(self, parts: tuple[PartFile, ...]) -> MergeReport:
        return MergeReport(
            rows=self._plan.rows,
            rows_by_status=dict(self._rows.rows_by_status.most_common()),
            usage=self._rows.usage,
            cost_usd=self._rows.cost_usd,
            files=tuple(self._layout.uri(part.name) for part in parts),
            rejects=self._layout.uri(REJECTS) if self._rejects is not None else None,
            manifest=self._layout.uri(MANIFEST),
        )


def _manifest(
    plan: Plan, report: MergeReport, parts: tuple[PartFile, ...], created: str, schema: pa.Schema
) -> dict[str, Any]:
    return {
        "manifest_version": MANIFEST_VERSION,
        "plan_id": plan.plan_id,
        "created": created,
        "files": [dataclasses.asdict(part) for part in parts],
        "partition_by": list(plan.settings.partition_by),
        "rejects": REJECTS if report.rejects else None,
        "status_column": f"{plan.spec.metadata_prefix}status",
        "rows": report.rows,
        "rows_by_status": dict(report.rows_by_status),
        "shards": len(plan.shards),
        "usage": dataclasses.asdict(report.usage),
        "cost_usd": report.cost_usd,
        "model": plan.spec.model,
        "spec_fingerprint": plan.spec.fingerprint,
        "columns": {field.name: str(field.type) for field in schema},
        "schema": encode_schema(schema),
        "versions": dict(plan.versions),
        "selection": dict(plan.selection),
        "source": [dict(file) for file in plan.source],
    }
