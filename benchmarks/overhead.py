"""What a job of one-row shards costs in Airflow beyond empty mapped tasks: seconds from the trigger to the end."""

from __future__ import annotations

import csv
from datetime import datetime
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from airflow_llm_provider.local import LocalAirflow
from airflow_llm_provider.testing.scripted_server import EndpointOptions
from benchmarks import child
from benchmarks.report import Report, options, rounded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_llm_provider.local import AirflowClient

SIZES = (1, 10, 100)
#: Tasks at once: two for each core of a small machine, whose tasks wait for each other.
PARALLELISM = 4
_DAGS = Path(__file__).parent / "dags"
_LATENCY = 0.05
_SECONDS = 3600.0
_TARGET = 1.5


class Contest:
    """Runs both DAGs in one Airflow.

    :param folder: of sources and outputs.
    """

    def __init__(self, client: AirflowClient, folder: Path) -> None:
        self._client = client
        self._folder = folder
        self._runs = 0
        for dag_id in ("shards", "empty"):
            client.wait_for_dag(dag_id)
            client.unpause(dag_id)

    def shards(self, count: int) -> float:
        """Run the job over so many rows, none of which has an answer, and return the seconds."""
        self._runs += 1
        source = self._folder / f"{self._runs}.csv"
        with source.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([["body"], *([f"ticket {number}"] for number in range(count))])
        destination = f"file://{self._folder / f'output-{self._runs}'}"
        return self._run("shards", source=str(source), destination=destination)

    def empty(self, count: int) -> float:
        """Run so many empty tasks between two others, and return the seconds."""
        return self._run("empty", parts=count)

    def _run(self, dag_id: str, **params: Any) -> float:
        """Trigger a run and return its seconds by Airflow's own clock, whatever the pause between two looks."""
        run_id = self._client.trigger(dag_id, params=params)
        ended = self._client.wait_for_run(dag_id, run_id, timeout=_SECONDS, poll=2.0)
        if ended != "success":
            raise RuntimeError(f"run {run_id} of {dag_id} ended as {ended}")
        [run] = [run for run in self._client.runs(dag_id) if run["dag_run_id"] == run_id]
        began, end = (datetime.fromisoformat(run[name]) for name in ("queued_at", "end_date"))
        return (end - began).total_seconds()


def measure(folder: Path, *, sizes: Sequence[int], runs: int) -> list[dict[str, Any]]:
    """Start Airflow and the model server, and let both DAGs take turns."""
    with (
        child.serve(EndpointOptions(latency=_LATENCY, full_records=False)) as server,
        LocalAirflow(folder / "airflow", _DAGS, parallelism=PARALLELISM) as airflow,
        airflow.client(timeout=120) as client,
    ):
        client.put_connection("llm_default", conn_type="llm", host=server.base_url, password="none")  # noqa: S106 -- nobody checks it
        contest = Contest(client, folder)
        # What only the first task ever pays: files that nobody has read yet.
        contest.empty(1)
        contest.shards(1)
        # Once at the largest: it takes minutes, and repeats itself a hundred times.
        return [compare(contest, size, 1 if size == max(SIZES) else runs) for size in sizes]


def compare(contest: Contest, size: int, runs: int) -> dict[str, Any]:
    """Run both DAGs at one size by turns, and return medians."""
    empty, ours = zip(*((contest.empty(size), contest.shards(size)) for _ in range(runs)), strict=True)
    beyond = median(mine - theirs for mine, theirs in zip(ours, empty, strict=True))
    return {
        "shards": size,
        "seconds": rounded(median(ours)),
        "empty_seconds": rounded(median(empty)),
        "beyond_seconds": rounded(beyond),
        "beyond_seconds_per_shard": rounded(beyond / size),
        "runs": runs,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    chosen = options("overhead", __doc__, arguments, runs=3)
    sizes, runs = ((1,), 1) if chosen.quick else (SIZES, chosen.runs)
    with TemporaryDirectory(prefix="overhead-") as place:
        found = measure(Path(place), sizes=sizes, runs=runs)
    largest = found[-1]
    value = largest["beyond_seconds_per_shard"]
    Report(
        name="overhead",
        value=value,
        unit="s per one-row shard beyond an empty mapped task",
        target=f"≤ {_TARGET:g}",
        ok=value <= _TARGET,
        baseline={
            "what": "a DAG of the same shape whose tasks do nothing, in the same Airflow, by turns",
            "seconds": largest["empty_seconds"],
        },
        details={"sizes": found, "parallelism": PARALLELISM, "answers_after_seconds": _LATENCY},
    ).print()


if __name__ == "__main__":
    main()
