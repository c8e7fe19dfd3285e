import pyarrow as pa
import pytest

from airflow_llm_provider.dataset.sources.formats import ReadOptions
from airflow_llm_provider.dataset.sources.source import open_source
from airflow_llm_provider.errors import LLMInputError


@pytest.fixture
def read(tmp_path):
    """Write files of the given names and contents, and read them as one table."""

    def read(files, pattern="", batch_rows=4096, columns_if_empty=(), **options):
        for name, content in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        source = open_source(
            f"{tmp_path}/{pattern}", options=ReadOptions(**options), columns_if_empty=columns_if_empty
        )
        table = pa.Table.from_batches(list(source.batches(batch_rows)), source.schema)
        read.notes = source.notes
        return table

    return read


@pytest.fixture
def attempt(read):
    """Read, and return the table and no message, or no table and the message of the error."""

    def attempt(files, **options):
        try:
            return read(files, **options), None
        except LLMInputError as error:
            return None, str(error)

    return attempt
