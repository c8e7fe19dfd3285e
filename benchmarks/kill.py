"""``kill -9`` at ten random points of one job, then to the end: answers paid twice, rows lost or duplicated.

The server counts: whatever reaches it is paid for, also when the process that asked is dead before the answer is.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections import Counter
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_llm_provider.testing.scripted_server import EndpointOptions, ScriptedServer
from benchmarks import child, texts, tickets
from benchmarks.report import Report, options

if TYPE_CHECKING:
    from collections.abc import Sequence

CONCURRENCY = 64
LATENCY = 0.05
_POLL_SECONDS = 0.01
_SETTLED_SECONDS = 10.0


def ours(*, rows: int, base_url: str, folder: str) -> dict[str, Any]:
    """Run the job, or the rest of it."""
    summary = tickets.run(rows, folder=folder, base_url=base_url, api_key="none", concurrency=CONCURRENCY)
    return {"succeeded": summary.rows_by_status.get("success", 0), "reused": summary.reused}


def kill_and_finish(target: str, points: Sequence[int], **arguments: Any) -> list[int]:
    """Run a job, killing it whenever so many answers were sent, then to its end; return what each kill paid twice.

    :param target: the job, as :mod:`benchmarks.child` calls it.
    :param points: answers sent in all, in order.
    """
    paid: list[list[str]] = []
    sent = 0
    with child.serve(EndpointOptions(answer="hash", latency=LATENCY, full_records=False)) as server:
        arguments["base_url"] = server.base_url
        for point in points:
            process = child.Child(target, arguments)
            while process.running and server.stats()["answered"] < point:
                time.sleep(_POLL_SECONDS)
            process.kill()
            _settle(server)
            requests = server.requests
            paid.append([request.digest for request in requests[sent:]])
            sent = len(requests)
        child.Child(target, arguments).result()
        paid.append([request.digest for request in server.requests[sent:]])
    return _paid_twice(paid)


def _settle(server: ScriptedServer) -> None:
    """Wait until the server knows that its client is dead."""
    until = time.monotonic() + _SETTLED_SECONDS
    while server.stats()["in_flight"] and time.monotonic() < until:
        time.sleep(_POLL_SECONDS)


def _paid_twice(paid: Sequence[Sequence[str]]) -> list[int]:
    """Count for each killed process the requests of its that were sent again later."""
    last_sent: dict[str, int] = {}
    again: Counter[int] = Counter()
    for number, digests in enumerate(paid):
        for digest in digests:
            if digest in last_sent:
                again[last_sent[digest]] += 1
            last_sent[digest] = number
    return [again[number] for number in range(len(paid) - 1)]


def _output(rows: int, destination: str) -> dict[str, int]:
    """Compare the output with the input, row by row, answers included."""
    columns = ["id", "subject", "body"]
    wanted = pq.read_table(texts.short_texts(rows))
    found = pq.read_table(destination)
    ids = found["id"]
    prompts = [str(body["messages"][-1]["content"]) for body in tickets.bodies(rows)]
    answers = [hashlib.blake2b(prompt.encode(), digest_size=8).hexdigest() for prompt in prompts]
    same = found.select(columns).equals(wanted.select(columns)) and found["answer"].to_pylist() == answers
    return {
        "rows": rows,
        "lost": rows - pc.count_distinct(ids).as_py(),
        "duplicated": len(found) - pc.count_distinct(ids).as_py(),
        "wrong": 0 if same else _wrong(found, answers),
    }


def _wrong(found: pa.Table, answers: Sequence[str]) -> int:
    pairs = zip(found["id"].to_pylist(), found["answer"].to_pylist(), strict=True)
    return sum(answer != answers[number] for number, answer in pairs)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    chosen = options("kill", __doc__, arguments, runs=1)
    rows, kills, runs = (150, 1, 1) if chosen.quick else (2_000, 10, chosen.runs)
    found: list[dict[str, Any]] = []
    for run in range(runs):
        rng = random.Random(run)  # noqa: S311 -- where to kill, not a secret
        points = sorted(rng.sample(range(1, rows), kills))
        with TemporaryDirectory(prefix="killed-") as folder:
            twice = kill_and_finish("benchmarks.kill:ours", points, rows=rows, folder=folder)
            found.append({"points": points, "paid_twice": twice, **_output(rows, f"{folder}/output")})
    point = found[0]["points"][kills // 2]
    naive = kill_and_finish("benchmarks.bare_loop:measure", [point], rows=rows, concurrency=CONCURRENCY)
    worst = max(max(run["paid_twice"]) for run in found)
    whole = all(run["lost"] == run["duplicated"] == run["wrong"] == 0 for run in found)
    Report(
        name="kill",
        value=worst,
        unit="answers paid twice, at the worst kill",
        target=f"≤ {CONCURRENCY} (what was in flight) each time, 0 lost, 0 duplicated",
        ok=worst <= CONCURRENCY and whole,
        baseline={
            "what": "aiohttp loop that keeps its answers in memory, killed once",
            "points": [point],
            "paid_twice": naive,
        },
        details={"kills": kills, "in_flight": CONCURRENCY, "runs": found},
    ).print()


if __name__ == "__main__":
    main()
