"""The least that a client can do: so many requests in flight, read the JSON, nothing else."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import aiohttp
import orjson

from benchmarks import tickets
from benchmarks.child import effort, peak_rss_mb

if TYPE_CHECKING:
    from collections.abc import Iterable

_HEADERS = {"content-type": "application/json", "authorization": "Bearer none"}
_TOO_MANY = 429


def measure(*, rows: int, base_url: str, concurrency: int, **policy: Any) -> dict[str, Any]:
    """Send the tickets' requests and say what it took.

    :param policy: see :func:`send`.
    """
    bodies = tickets.bodies(rows)
    with effort() as taken:
        statuses = asyncio.run(send(bodies, base_url=base_url, concurrency=concurrency, **policy))
    return {
        "seconds": taken.seconds,
        "cpu_us_per_row": taken.cpu_seconds / rows * 1e6,
        "rss_mb": peak_rss_mb(),
        "succeeded": statuses[200],
    }


async def send(
    bodies: Iterable[dict[str, Any]],
    *,
    base_url: str,
    concurrency: int,
    attempts: int = 1,
    backoff: float = 0.5,
    longest_backoff: float = 8.0,
) -> Counter[int]:
    """Send every body and count the statuses with which they ended.

    :param attempts: requests for one body until it is given up, with a doubling wait between, or as long as the
        server asks. One: what comes back counts.
    """
    pending = iter(bodies)
    ended: Counter[int] = Counter()
    url = f"{base_url}/chat/completions"
    connector = aiohttp.TCPConnector(limit=0)

    async def work(session: aiohttp.ClientSession) -> None:
        for body in pending:
            status = 0
            for attempt in range(attempts):
                async with session.post(url, data=orjson.dumps(body), headers=_HEADERS) as response:
                    orjson.loads(await response.read())
                status = response.status
                if status == 200 or attempt + 1 == attempts:
                    break
                asked = response.headers.get("retry-after") if status == _TOO_MANY else None
                wait = min(backoff * 2**attempt, longest_backoff) if asked is None else float(asked)
                await asyncio.sleep(wait)
            ended[status] += 1

    async with aiohttp.ClientSession(connector=connector) as session:
        await asyncio.gather(*(work(session) for _ in range(concurrency)))
    return ended
