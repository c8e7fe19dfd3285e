"""One sender in a process of its own: takes as much as it can and prints when it sent what.

``python sender_process.py URL SECONDS IN_FLIGHT LIMITS`` prints one JSON list of [time, tokens]; times are those
that the limiter granted, by the backend's clock, which is one for all processes.
"""

import asyncio
import json
import random
import sys
import time

from airflow_llm_provider.engine.limiter import Cost
from airflow_llm_provider.limiters import limiter_from_url


async def main(url, seconds, in_flight, limits):
    limiter = limiter_from_url(url, "account", "model", limits)
    rng = random.Random()
    end, sent = time.monotonic() + seconds, []

    async def worker():
        while time.monotonic() < end:
            used = rng.randint(40, 160)
            reservation = await limiter.reserve(Cost(tokens=20 + 400, output_cap=400))
            wait = reservation.wait
            while wait > 0:
                await asyncio.sleep(wait)
                wait = await limiter.recheck(reservation)
            sent.append((reservation.token.last.at, used))
            await asyncio.sleep(0.03)
            await limiter.settle(reservation, Cost(tokens=used))

    await asyncio.gather(*(worker() for _ in range(in_flight)))
    await limiter.aclose()
    return sent


if __name__ == "__main__":
    _, address, duration, concurrency, known = sys.argv
    sys.stdout.write(
        json.dumps(asyncio.run(main(address, float(duration), int(concurrency), json.loads(known))))
    )
