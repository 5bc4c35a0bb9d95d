"""Producers of other queues, in a process of their own. Prints the seconds that so many tasks took.

python -m tests.bench.peer_side litequeue|persistqueue|greenstalk FOLDER|PORT TASKS PRODUCERS
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.bench.jobs import PAYLOAD


def litequeue(where: str) -> Callable[[], object]:
    from litequeue import LiteQueue  # noqa: PLC0415 - one peer a process

    queue = LiteQueue(str(Path(where) / "queue.db"))
    return lambda: queue.put(PAYLOAD.decode())


def persistqueue(where: str) -> Callable[[], object]:
    from persistqueue import SQLiteQueue  # noqa: PLC0415 - one peer a process

    queue = SQLiteQueue(where, auto_commit=True)
    return lambda: queue.put(PAYLOAD)


def greenstalk(where: str) -> Callable[[], object]:
    from greenstalk import Client  # noqa: PLC0415 - one peer a process

    client = Client(("127.0.0.1", int(where)))
    return lambda: client.put(PAYLOAD.decode())


def main(name: str, where: str, tasks: int, producers: int) -> None:
    puts = [
        {"litequeue": litequeue, "persistqueue": persistqueue, "greenstalk": greenstalk}[name](where)
        for _ in range(producers)
    ]

    def produce(put: Callable[[], object]) -> None:
        for _ in range(tasks // producers):
            put()

    puts[0]()
    threads = [threading.Thread(target=produce, args=(put,)) for put in puts[1:]]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    produce(puts[0])
    for thread in threads:
        thread.join()
    print(time.perf_counter() - start)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
