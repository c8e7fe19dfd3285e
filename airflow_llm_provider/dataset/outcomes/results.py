"""Results files: how every row of a finished shard ended."""

from __future__ import annotations

import json
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_llm_provider.dataset.arrow.text import clean
from airflow_llm_provider.dataset.outcomes.columns import METADATA, OutputColumns
from airflow_llm_provider.dataset.outcomes.json_schema import MisfitError
from airflow_llm_provider.dataset.outcomes.record import Record, is_answered
from airflow_llm_provider.dataset.outcomes.results_buffer import ResultsBuffer
from airflow_llm_provider.engine.call import Outcome
from airflow_llm_provider.engine.status import RowStatus
from airflow_llm_provider.engine.usage import Usage

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator
    from types import TracebackType

    from airflow_llm_provider.dataset.files.layout import Layout
    from airflow_llm_provider.dataset.plans.shards import ShardKeys
    from airflow_llm_provider.spec import CompletionSpec

#: Columns that identify a row, before the answer columns.
KEY_COLUMNS: tuple[pa.Field, ...] = (
    pa.field("_llm_fingerprint", pa.binary(16)),
    pa.field("_llm_occurrence", pa.int32()),
)
#: Columns for ourselves, after the metadata columns.
OWN_COLUMNS: tuple[pa.Field, ...] = (
    # The model's own words; null when the row succeeded and its plain-text answer is just them.
    pa.field("_llm_text", pa.string()),
    pa.field("_llm_code", pa.string()),
    # Whether a completion was received and billed: such rows are never asked again.
    pa.field("_llm_answered", pa.bool_()),
)
#: Key of the file's metadata that says which columns the texts and the metadata are in.
_METADATA_KEY = b"airflow_llm_provider"
_BATCH_ROWS = 4096
#: Rows that are encoded at once between two answers: few, since whoever has its answer meanwhile waits.
STEP_ROWS = 64
#: What is asked of an outcome that is encoded: whether it is an answer, and what failed.
_ENDING = ("status", "code", "finish_reason", "attempts")
_ending_of = attrgetter(*_ENDING)


def results_schema(columns: OutputColumns, spec: CompletionSpec) -> pa.Schema:
    """Return the schema of a results file."""
    note = {
        "prefix": spec.metadata_prefix,
        "text_column": spec.output_column if spec.output_schema is None else None,
    }
    fields = [*KEY_COLUMNS, *columns.answer, *columns.metadata, *OWN_COLUMNS]
    return pa.schema(fields, metadata={_METADATA_KEY: json.dumps(note).encode()})


class ShardResults:
    """The results of a shard, encoded while its rows still end, so that little is left to do when the last one has.

    A context manager, at whose end no thread is left that encodes.

    :param outcomes: one per row, in row order; ``None``: not yet. Whoever fills it in calls :meth:`advance`, after which
        an outcome may be one that says only how the row ended: a shard's answers are in memory once, not twice.
    """

    def __init__(self, *, spec: CompletionSpec, keys: ShardKeys, outcomes: list[Outcome | None]) -> None:
        self._spec = spec
        self._keys = keys
        self._outcomes = outcomes
        self._columns = OutputColumns(spec)
        self._schema = results_schema(self._columns, spec)
        self._buffer = ResultsBuffer(self._schema, _repeating(self._columns), rows=len(outcomes))
        self._endings: dict[Hashable, Outcome] = {}
        #: Rows that are encoded, and rows from the first on that have ended: both only grow.
        self._encoded = self._ended = 0
        self._late = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._buffer.close()

    def advance(self) -> None:
        """Encode a few rows, if the next ones in order have all ended: a few milliseconds at most."""
        end = self._encoded + STEP_ROWS
        if self._late or end > len(self._outcomes):
            return
        while self._ended < end and self._outcomes[self._ended] is not None:
            self._ended += 1
        if self._ended < end:
            return
        try:
            self._buffer.add(self._encode(self._encoded, end))
        except Exception:  # noqa: BLE001 -- raised again by write(), which comes when every answer is kept
            self._late = True
        else:
            self._outcomes[self._encoded : end] = [
                None if outcome is None else self._ending(outcome)
                for outcome in self._outcomes[self._encoded : end]
            ]
            self._encoded = end

    def _ending(self, outcome: Outcome) -> Outcome:
        """Return one outcome for all rows that ended alike, without words and costs."""
        key = _ending_of(outcome)
        known = self._endings.get(key)
        if known is None:
            known = self._endings[key] = Outcome(index=-1, **dict(zip(_ENDING, key, strict=True)))
        return known

    def write(self, layout: Layout, shard_id: str) -> str:
        """Write how every row ended, and return the file's URI.

        An answer that does not fit its column, such as an integer beyond 64 bits, ends as ``invalid_output``: see
        :func:`fitting`.
        """
        count = len(self._outcomes)
        if count != len(self._keys):
            raise ValueError(f"{count} outcomes for the {len(self._keys)} rows of shard {shard_id}")
        for start in range(self._encoded, count, STEP_ROWS):
            self._buffer.add(self._encode(start, min(start + STEP_ROWS, count)))
        name = layout.results(shard_id)
        with layout.storage.create(name) as file:
            file.write(self._buffer.finish())
        return layout.uri(name)

    def _encode(self, start: int, end: int) -> pa.RecordBatch:
        keys, columns, spec = self._keys, self._columns, self._spec
        rows = []
        for index in range(start, end):
            outcome = self._outcomes[index]
            if outcome is None:
                raise ValueError(f"row {index} has not ended")
            rows.append(_row(keys.fingerprints[index], keys.occurrences[index], outcome, columns, spec))
        arrays = [
            pa.array(values, field.type)
            for values, field in zip(zip(*rows, strict=True), self._schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _repeating(columns: OutputColumns) -> list[str]:
    """Return the columns whose values repeat; to look for it in the others takes half as long as all the rest."""
    unlike = {columns.metadata_name(name) for name in ("cost_usd", "latency_ms", "request_id")}
    return [field.name for field in columns.metadata if field.name not in unlike]


def fitting(outcome: Outcome, columns: OutputColumns) -> tuple[Outcome, tuple[Any, ...]]:
    """Return the outcome and its values for the answer columns; as ``invalid_output`` when they do not fit."""
    nothing = (None,) * len(columns.answer)
    if outcome.status is not RowStatus.SUCCESS:
        return outcome, nothing
    try:
        return outcome, columns.convert(outcome.answer)
    except MisfitError as error:
        misfit = Outcome(
            index=outcome.index,
            status=RowStatus.INVALID_OUTPUT,
            text=outcome.text,
            code="does_not_fit_column",
            message=str(error),
            model=outcome.model,
            finish_reason=outcome.finish_reason,
            usage=outcome.usage,
            cost_usd=outcome.cost_usd,
            attempts=outcome.attempts,
            latency_ms=outcome.latency_ms,
            request_id=outcome.request_id,
            account=outcome.account,
        )
        return misfit, nothing


def _row(
    fingerprint: bytes | None, occurrence: int, outcome: Outcome, columns: OutputColumns, spec: CompletionSpec
) -> tuple[Any, ...]:
    outcome, values = fitting(outcome, columns)
    asked = outcome.attempts > 0
    metadata = (
        outcome.status.value,
        outcome.model,
        outcome.finish_reason,
        outcome.usage.prompt_tokens if asked else None,
        outcome.usage.completion_tokens if asked else None,
        outcome.usage.cached_tokens if asked else None,
        outcome.cost_usd,
        outcome.attempts,
        outcome.latency_ms,
        outcome.request_id,
        outcome.account,
        clean(outcome.message) if outcome.message is not None else outcome.code,
    )
    text = None if outcome.text is None else clean(outcome.text)
    if spec.output_schema is None and outcome.status is RowStatus.SUCCESS and values == (text,):
        text = None
    return (fingerprint, occurrence, *values, *metadata, text, outcome.code, is_answered(outcome))


def read_results_file(layout: Layout, shard_id: str) -> pa.Table | None:
    """Read a results file; ``None`` only when there is none.

    :raises BrokenFileError: when it is cut short or damaged.
    :raises LLMStateError: when it cannot be read.
    """
    name = layout.results(shard_id)
    data = layout.storage.read_bytes(name)
    if data is None:
        return None
    with layout.storage.reading(name):
        # In pieces: at once, a column of texts takes three times its size while it is decoded.
        file = pq.ParquetFile(pa.BufferReader(data), pre_buffer=False, page_checksum_verification=True)
        batches = file.iter_batches(_BATCH_ROWS, use_threads=False)
        return _with_later_columns(pa.Table.from_batches(batches, file.schema_arrow))


def _with_later_columns(table: pa.Table) -> pa.Table:
    """Add what files of earlier versions lack: nothing is known there."""
    name = _note(table.schema).get("prefix", "llm_") + "conn_id"
    if name in table.column_names:
        return table
    return table.append_column(pa.field(name, pa.string()), pa.nulls(table.num_rows, pa.string()))


def _note(schema: pa.Schema) -> dict[str, Any]:
    return dict(json.loads((schema.metadata or {}).get(_METADATA_KEY, b"{}")))


def latency_column(schema: pa.Schema) -> str:
    """Return the column of a results file that tells answers to one request apart."""
    return str(_note(schema).get("prefix", "llm_")) + "latency_ms"


def records_of(table: pa.Table) -> Iterator[Record]:
    """Yield the paid answers of a results file, without the parsed answer: the text says it."""
    note = _note(table.schema)
    prefix, text_column = note.get("prefix", "llm_"), note.get("text_column")
    names = [
        *(field.name for field in KEY_COLUMNS),
        *(prefix + name for name, _ in METADATA),
        "_llm_text",
        "_llm_code",
    ]
    answered = table.filter(table.column("_llm_answered"))
    for batch in answered.to_batches(max_chunksize=_BATCH_ROWS):
        answers = batch.column(text_column).to_pylist() if text_column else [None] * batch.num_rows
        for row, answer in zip(batch.select(names).to_pylist(), answers, strict=True):
            yield _record(row, prefix, answer)


def _record(row: dict[str, Any], prefix: str, answer: str | None) -> Record:
    meta = {name: row[prefix + name] for name, _ in METADATA}
    status = RowStatus(meta["status"])
    text = row["_llm_text"]
    return Record(
        row["_llm_fingerprint"],
        row["_llm_occurrence"],
        Outcome(
            index=-1,
            status=status,
            text=answer if text is None and status is RowStatus.SUCCESS else text,
            code=row["_llm_code"],
            message=meta["error"],
            model=meta["model"],
            finish_reason=meta["finish_reason"],
            usage=Usage(
                prompt_tokens=meta["prompt_tokens"] or 0,
                completion_tokens=meta["completion_tokens"] or 0,
                cached_tokens=meta["cached_tokens"] or 0,
            ),
            cost_usd=meta["cost_usd"],
            attempts=meta["attempts"],
            latency_ms=meta["latency_ms"],
            request_id=meta["request_id"],
            account=meta["conn_id"],
        ),
    )
