"""The bare loop: a client that posts the same bytes, and nothing else. Prints the seconds it took.

python -m tests.bench.bare URL REQUESTS CONCURRENCY
"""

from __future__ import annotations

import asyncio
import sys
import time

import aiohttp
from tests.bench.jobs import PAYLOAD

HEADERS = {"Content-Type": "application/json", "Idempotency-Key": "0197c2a4-0000-7000-8000-000000000000"}


async def main(url: str, requests: int, concurrency: int) -> None:
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), cookie_jar=aiohttp.DummyCookieJar()
    ) as session:

        async def post(count: int) -> None:
            for _ in range(count):
                async with session.post(url, data=PAYLOAD, headers=HEADERS) as response:
                    await response.read()

        await asyncio.gather(*(post(2) for _ in range(concurrency)))  # the connections are made before the clock runs
        start = time.perf_counter()
        await asyncio.gather(*(post(requests // concurrency) for _ in range(concurrency)))
        print((time.perf_counter() - start) / (requests // concurrency * concurrency) * requests)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
