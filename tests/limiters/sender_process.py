"""One sender in a process of its own: takes as much as it can and prints when it sent what.

``python sender_process.py URL COUNT IN_FLIGHT LIMITS`` prints for each of COUNT requests a line of JSON, [time, tokens];
times are those that the limiter granted, by the backend's clock, which is one for all processes.
"""

import asyncio
import json
import random
import sys

from airflow_llm_provider.engine.limiter import Cost
from airflow_llm_provider.limiters import limiter_from_url


async def main(url, count, in_flight, limits):
    limiter = limiter_from_url(url, "account", "model", limits)
    rng = random.Random(7)
    numbers = iter(range(count))

    async def worker():
        for _ in numbers:
            used = rng.randint(40, 160)
            reservation = await limiter.reserve(Cost(tokens=20 + 400, output_cap=400))
            wait = reservation.wait
            while wait > 0:
                await asyncio.sleep(wait)
                wait = await limiter.recheck(reservation)
            print(json.dumps([reservation.token.last.at, used]), flush=True)  # noqa: T201 -- the interface
            await asyncio.sleep(0.03)
            await limiter.settle(reservation, Cost(tokens=used))

    await asyncio.gather(*(worker() for _ in range(in_flight)))
    await limiter.aclose()


if __name__ == "__main__":
    _, address, requests, concurrency, known = sys.argv
    asyncio.run(main(address, int(requests), int(concurrency), json.loads(known)))
