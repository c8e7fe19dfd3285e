"""The job that is measured: a label for every support ticket."""

from __future__ import annotations

from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from airflow_llm_provider import CompletionSpec
from airflow_llm_provider.prompt import PromptTemplate, RequestShape
from airflow_llm_provider.testing.scripted_server import ScriptedServer
from benchmarks import texts
from benchmarks.child import effort

if TYPE_CHECKING:
    from airflow_llm_provider.xcom import RunSummary

_WARM_ROWS = 8
SPEC = CompletionSpec(
    model="gpt-4o-mini",
    system="You sort support tickets. Answer with one word.",
    prompt="Ticket: {{ subject }}\n{{ body }}",
    max_output_tokens=64,
    temperature=0,
)


def bodies(rows: int) -> list[dict[str, Any]]:
    """Return the request bodies of the first tickets, exactly as they are sent."""
    template, shape = PromptTemplate(SPEC), RequestShape(SPEC)
    table = pq.read_table(texts.short_texts(rows), columns=sorted(template.columns))
    return [shape.body(template.messages(row)) for row in table.to_pylist()]


def warm_up(rows: int = 0) -> float:
    """Do what a process does once, by a small run: import, load vocabulary and prices; return the seconds it took.

    :param rows: rows of the run to come, whose texts are made now.
    """
    texts.short_texts(rows or _WARM_ROWS)
    texts.short_texts(_WARM_ROWS)
    with ScriptedServer() as server, effort() as taken:
        run(_WARM_ROWS, base_url=server.base_url, api_key="none")
    return taken.seconds


def run(
    rows: int, *, folder: str | None = None, limiter_url: str | None = None, **options: Any
) -> RunSummary:
    """Label the first tickets in this process.

    What is learned about limits stays in the folder too, unless told otherwise: another server may come to the same
    port.

    :param folder: where ``output`` goes; by default one that is gone afterwards.
    :param options: further arguments of ``run_dataset``.
    """
    from airflow_llm_provider.jobs import run_dataset  # noqa: PLC0415 -- not for those who only want the bodies

    if folder is None:
        with TemporaryDirectory(prefix="labels-") as place:
            return run(rows, folder=place, limiter_url=limiter_url, **options)
    source = texts.short_texts(rows)
    shared = limiter_url or f"file://{folder}/limits"
    return run_dataset(SPEC, source, f"{folder}/output", limiter_url=shared, **options)
