"""The finished output, read back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_llm_provider.dataset.arrow.schemas import decode_schema
from airflow_llm_provider.dataset.files.destination import read_json
from airflow_llm_provider.dataset.files.layout import MANIFEST, Layout
from airflow_llm_provider.dataset.files.urls import Resolver, public_uri, resolve
from airflow_llm_provider.dataset.plans.partitions import restored
from airflow_llm_provider.errors import LLMStateError

if TYPE_CHECKING:
    import pandas as pd


def read_results(
    uri: str, *, resolver: Resolver = resolve, rejects: bool = True, as_pandas: bool = False
) -> pa.Table | pd.DataFrame:
    """Read the output of a run, in the order of the input; with ``partition_by``, partition by partition.

    :param uri: the destination.
    :param rejects: also the rows without an answer; ``False``: only those whose status is ``success``.
    :param as_pandas: a pandas DataFrame instead of an Arrow table.
    :raises LLMStateError: when there is no finished output, or it cannot be read.
    """
    layout = Layout(uri, resolver)
    manifest = read_json(layout, MANIFEST)
    if manifest is None:
        raise LLMStateError(
            f"{public_uri(uri)} has no {MANIFEST}: no run has finished there, or one is just replacing the output"
        )
    tables = [_read(layout, file, manifest) for file in _files(manifest)]
    table = pa.concat_tables(tables)
    if not rejects:
        table = table.filter(pc.equal(table.column(str(manifest["status_column"])), "success"))
    return table.to_pandas() if as_pandas else table


def _files(manifest: dict[str, object]) -> list[dict[str, Any]]:
    files = manifest.get("files")
    return files if isinstance(files, list) else []


def _read(layout: Layout, part: dict[str, Any], manifest: dict[str, object]) -> pa.Table:
    name, rows = str(part["name"]), int(part["rows"])
    with layout.storage.open_parquet(name) as file, layout.storage.reading(name):
        table = file.read()
    if table.num_rows != rows:
        raise LLMStateError(
            f"{public_uri(layout.uri(name))} has {table.num_rows} rows where the manifest says {rows}: another run is "
            "replacing the output, or someone changed it"
        )
    values = part.get("partition")
    if not values:
        return table
    # The manifest says exactly what a folder's name only hints at: an empty text or null, a number or its text.
    schema = decode_schema(str(manifest["schema"]))
    columns = restored(values, schema, rows)
    return pa.table(
        [columns.get(f.name, table[f.name] if f.name in table.column_names else None) for f in schema], schema
    )
