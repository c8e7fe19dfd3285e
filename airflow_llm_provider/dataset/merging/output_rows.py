"""From rows in the order of the input to part files: all in one folder, or one folder for each partition."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_llm_provider.dataset.merging.partition_sorter import PartitionSorter
from airflow_llm_provider.dataset.plans.partitions import PartitionKeys, folder_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_llm_provider.dataset.merging.part_files import PartFile, PartWriter


def files_schema(schema: pa.Schema, partition_by: Sequence[str]) -> pa.Schema:
    """Return the columns of the part files: those of the output, without those that their folders name."""
    return pa.schema([field for field in schema if field.name not in partition_by])


class OutputRows:
    """Takes the rows of the output, and writes them into part files.

    :param schema: schema of the rows.
    :param partition_by: columns whose values name folders.
    """

    def __init__(self, parts: PartWriter, schema: pa.Schema, partition_by: Sequence[str]) -> None:
        self._parts = parts
        self._partition_by = tuple(partition_by)
        self._keys = PartitionKeys(partition_by)
        self._names = files_schema(schema, partition_by).names
        self._sorter = PartitionSorter(files_schema(schema, partition_by)) if partition_by else None

    def write(self, batch: pa.RecordBatch) -> None:
        """Take the next rows.

        :raises LLMInputError: when they make too many partitions.
        """
        if self._sorter is None:
            self._parts.write(batch)
            return
        self._sorter.add(batch.select(self._names), self._keys.numbers(batch))

    def finish(self) -> tuple[PartFile, ...]:
        """Write what is left, and return all files: partition by partition, in the order of their first rows."""
        if self._sorter is not None:
            for number, batches in self._sorter.partitions():
                values = self._keys.found[number]
                folder = folder_of(self._partition_by, values)
                self._parts.begin_folder(folder, dict(zip(self._partition_by, values, strict=True)))
                for batch in batches:
                    self._parts.write(batch)
        return self._parts.finish()

    def close(self) -> None:
        """Let go of the rows."""
        if self._sorter is not None:
            self._sorter.close()
