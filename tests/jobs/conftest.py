"""A small job on local files with a scripted client, in virtual time."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_llm_provider.dataset import read_results
from airflow_llm_provider.jobs import CompleteOptions, ShardRun, SplitOptions, merge, split
from airflow_llm_provider.spec import CompletionSpec
from airflow_llm_provider.testing.clock import ManualClock
from airflow_llm_provider.testing.scripted_client import ScriptedClient

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from airflow_llm_provider.testing.scripted_client import ScriptedCall
    from airflow_llm_provider.xcom import RunSummary, ShardReference, ShardState


def asked(call: ScriptedCall) -> str:
    """The user message of a call."""
    return call.body["messages"][-1]["content"]


@dataclass
class Job:
    """Source, destination and the calls that were made, over several runs."""

    folder: Path
    spec: CompletionSpec
    clock: ManualClock = field(default_factory=ManualClock)
    calls: list[str] = field(default_factory=list)
    answer: Any = None
    states: list[ShardState] = field(default_factory=list)
    last_run: ShardRun | None = None

    @property
    def destination(self) -> str:
        return str(self.folder / "out")

    @property
    def source(self) -> str:
        return str(self.folder / "in.parquet")

    def write(self, texts: Sequence[str | None], **columns: Sequence[Any]) -> None:
        pq.write_table(pa.table({"text": pa.array(texts, pa.string()), **columns}), self.source)

    def client(self) -> ScriptedClient:
        def respond(call: ScriptedCall) -> Any:
            self.calls.append(asked(call))
            return self.answer(call) if self.answer else f"answer to {asked(call)}"

        return ScriptedClient(respond, clock=self.clock, latency=0.1)

    def split(self, **options: Any) -> Any:
        return split(
            self.spec, self.source, self.destination, options=SplitOptions(**options), clock=self.clock
        )

    def shard_run(self, reference: ShardReference, **options: Any) -> ShardRun:
        self.last_run = ShardRun(
            reference,
            client=self.client(),
            options=CompleteOptions(**{"concurrency": 4, **options}),
            clock=self.clock,
            rng=random.Random(7),
        )
        return self.last_run

    def run(self, *, complete: dict[str, Any] | None = None, **options: Any) -> RunSummary:
        """All three steps; states cross JSON as they cross XCom."""
        result = self.split(**options)
        self.states = [self.shard_run(ref, **(complete or {})).run() for ref in result.references]
        states = [json.loads(json.dumps(state.to_json())) for state in self.states]
        return merge(result.plan_uri, states=states, clock=self.clock)

    def requests(self) -> int:
        """How many calls were made since last asked."""
        count = len(self.calls)
        self.calls.clear()
        return count

    def output(self) -> list[dict[str, Any]]:
        return read_results(self.destination).to_pylist()


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path, CompletionSpec(model="gpt-4o-mini", prompt="{{ text }}", temperature=0))
